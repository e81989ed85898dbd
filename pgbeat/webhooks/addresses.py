"""Says which network addresses are public, where requests to URLs of other people may go."""

import ipaddress

# IPv6 addresses that have an IPv4 address in their last bytes: NAT64 (RFC 6052), and the deprecated
# IPv4-compatible addresses (RFC 4291, 2.5.5.1).
_CARRYING = (ipaddress.IPv6Network("64:ff9b::/96"), ipaddress.IPv6Network("::/96"))
_GLOBAL = ipaddress.IPv6Network("2000::/3")
_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def refusal(text: str) -> str | None:
    """Returns what kind of address this is, such as `a loopback address`, if it is not public.

    Returns `None` for public addresses, and for text that is not an address.
    """
    try:
        address: _Address = ipaddress.ip_address(text)
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


def _carried(address: _Address) -> ipaddress.IPv4Address | None:
    """Returns the IPv4 address to which an IPv6 address leads."""
    if isinstance(address, ipaddress.IPv4Address):
        return None
    if address.ipv4_mapped is not None or address.sixtofour is not None:
        return address.ipv4_mapped or address.sixtofour
    if any(address in network for network in _CARRYING):
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return None
