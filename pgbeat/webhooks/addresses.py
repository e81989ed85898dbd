"""Which addresses of the network are public: where a request may go whose URL somebody gave us."""

import ipaddress

#: Addresses of IPv6 that carry one of IPv4 in their last bytes: NAT64 (RFC 6052), and the
#: deprecated way to write one (RFC 4291, 2.5.5.1).
_CARRYING = (ipaddress.IPv6Network("64:ff9b::/96"), ipaddress.IPv6Network("::/96"))
_GLOBAL = ipaddress.IPv6Network("2000::/3")
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def refusal(text: str) -> str | None:
    """What an address is that is not public, such as `a loopback address`; `None` for one that is,
    and for what is no address."""
    try:
        address: Address = ipaddress.ip_address(text)
    except ValueError:
        return None
    carried = _carried(address)
    if carried is not None and not address.is_loopback and not address.is_unspecified:
        return refusal(str(carried))
    if address.is_unspecified:
        return "the unspecified address"
    for kind in ("loopback", "link_local", "multicast"):
        if getattr(address, f"is_{kind}"):
            return f"a {kind.replace('_', '-')} address"
    is_public = address.is_global
    if isinstance(address, ipaddress.IPv6Address):
        is_public = is_public and address in _GLOBAL and not address.is_site_local
    return None if is_public else "an address of a private or reserved network"


def _carried(address: Address) -> ipaddress.IPv4Address | None:
    """Returns the address of IPv4 that one of IPv6 leads to."""
    if isinstance(address, ipaddress.IPv4Address):
        return None
    if address.ipv4_mapped is not None or address.sixtofour is not None:
        return address.ipv4_mapped or address.sixtofour
    if any(address in network for network in _CARRYING):
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return None
