"""Print the few metrics of a controller that a newcomer looks for. Usage: show_metrics.py URL."""

import sys
import urllib.request

SHOWN = (
    "mlxfleet_gateway_requests_total",
    "mlxfleet_gateway_time_to_first_token_seconds_sum",
    "mlxfleet_gateway_prompt_tokens_total",
    "mlxfleet_gateway_completion_tokens_total",
    "mlxfleet_gateway_endpoints",
)


def main() -> None:
    """Fetch and filter."""
    url = sys.argv[1] + "/metrics"
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    for line in lines:
        if line.startswith(SHOWN):
            print(line)
    print(f"... {sum(not line.startswith('#') for line in lines)} series at {url}")


if __name__ == "__main__":
    main()
