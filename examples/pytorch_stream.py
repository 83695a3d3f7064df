"""Feeds PyTorch from a query that Forebay computes once for all training processes.

Start `forebay serve`, and then this in as many processes as train:

    python examples/pytorch_stream.py grpc://127.0.0.1:50051 'SELECT id, value FROM t' --epochs 2

It needs pyarrow and torch, and nothing of Forebay's.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator

import pyarrow
import pyarrow.flight as flight
import torch


class ForebayStream(torch.utils.data.IterableDataset):
    """The batches of a stream: `{column: tensor}`, or a list where a column is no tensor.

    Every process, and every worker of its DataLoader, that reads the stream of the same name gets
    batches that no other one gets.
    """

    def __init__(self, uri: str, name: str, query: str, **definition: object) -> None:
        super().__init__()
        self.uri = uri
        self.definition = {"name": name, "query": query, **definition}
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """The next loop reads this epoch: the query runs again, with `shuffle` in another order."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[dict[str, torch.Tensor | list]]:
        definition = json.dumps({**self.definition, "epoch": self.epoch})
        descriptor = flight.FlightDescriptor.for_path("forebay.stream", definition)
        with flight.connect(self.uri) as client:
            info = client.get_flight_info(descriptor)
            for chunk in client.do_get(info.endpoints[0].ticket):
                names = chunk.data.schema.names
                yield {name: tensor(chunk.data[name]) for name in names}


def tensor(column: pyarrow.Array) -> torch.Tensor | list:
    """A column as a tensor with a row per row; lists of one length become a matrix."""
    if column.null_count:
        return column.to_pylist()
    if pyarrow.types.is_fixed_size_list(column.type):
        values = tensor(column.flatten())
        shape = (len(column), column.type.list_size)
        return values.reshape(shape) if torch.is_tensor(values) else column.to_pylist()
    if pyarrow.types.is_integer(column.type) or pyarrow.types.is_floating(column.type):
        # PyTorch warns of memory that it must not write to, which Arrow's is.
        return torch.from_numpy(column.to_numpy().copy())
    return column.to_pylist()


def main() -> None:
    """Counts what one training process gets."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("uri")
    parser.add_argument("query")
    parser.add_argument("--name", default="example")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-rows", type=int, default=256)
    parser.add_argument("--shuffle", type=int, help="a seed")
    parser.add_argument("--shuffle-window", help="bytes of files that are shuffled together, as 256MiB")
    parser.add_argument("--workers", type=int, default=0, help="of the DataLoader")
    arguments = parser.parse_args()
    options = {"batch_rows": arguments.batch_rows, "shuffle": arguments.shuffle}
    options["shuffle_window"] = arguments.shuffle_window
    dataset = ForebayStream(arguments.uri, arguments.name, arguments.query, **options)
    loader = torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=arguments.workers)
    for epoch in range(arguments.epochs):
        dataset.set_epoch(epoch)
        sizes = [len(next(iter(batch.values()))) for batch in loader]
        print(f"epoch {epoch}: {len(sizes)} batches, {sum(sizes)} rows")


if __name__ == "__main__":
    main()
