"""The broker: SQL on queues and messages, the transport for kombu, and publishing."""
