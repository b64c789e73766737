"""The load generator's rows by name: the program that `generator` starts.

python -m benchmarks.load_rows --port 4222 --row publish --args '{"size": 128, "seconds": 3}'
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable

from benchmarks import feature_load, load
from benchmarks.doors import Door
from benchmarks.load import Figures, Link, LoadError

ROWS: dict[str, Callable[..., Figures]] = {
    "publish": load.publish,
    "publish_beside": load.publish_beside,
    "put_keys": load.put_keys,
    "fill": load.fill,
    "fetch": load.fetch,
    "push": load.push,
    "get_last": load.get_last,
    "core": load.core,
    "request_reply": load.request_reply,
    "create_streams": load.create_streams,
    "mirror": feature_load.mirror,
    "sources": feature_load.sources,
    "count_up": feature_load.count_up,
    "fast_batch": feature_load.fast_batch,
}


def main() -> None:
    """Run the program."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--row", required=True, choices=ROWS)
    parser.add_argument("--args", default="{}", help="JSON keyword arguments of the row's function")
    options = parser.parse_args()
    try:
        arguments = json.loads(options.args)
        Link.door = Door(arguments.pop("door", {}))
        print(json.dumps(ROWS[options.row](options.port, **arguments)))
    except (LoadError, OSError) as err:
        print(json.dumps({"error": f"{type(err).__name__}: {err}"}))
        raise SystemExit(1) from err


if __name__ == "__main__":
    main()
