"""Write shop.parquet beside this file: the tickets that came in through the shop's own form."""

from __future__ import annotations

import datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

TICKETS = [
    (5001, "The courier left my box in the rain, and everything in it is wet.", 3),
    (5002, "Please change the e-mail address of my account.", None),
    (5003, "One leg of the chair is shorter than the others.", 2),
    (5004, "You took 40 euros from my card, but the price was 30 euros.", 1),
    (5005, "I moved house. Can you send the parcel to my new address instead?", None),
]

if __name__ == "__main__":
    day = datetime.datetime(2026, 5, 4, 9, 30, tzinfo=datetime.UTC)
    table = pa.table(
        {
            "ticket": pa.array([ticket for ticket, _, _ in TICKETS], pa.int64()),
            "received": pa.array([day + datetime.timedelta(hours=n) for n in range(len(TICKETS))]),
            "text": pa.array([text for _, text, _ in TICKETS]),
            "stars": pa.array([stars for _, _, stars in TICKETS], pa.int8()),
        }
    )
    pq.write_table(table, Path(__file__).resolve().parent / "shop.parquet")
