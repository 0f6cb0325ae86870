"""The words of HTTP at the gateway's door: requests in, bodies peeked at, events out."""
