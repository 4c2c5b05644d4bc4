"""Imported by the process that `forks` are forked from, and by nothing else: one capture, so that a fork finds all things loaded."""

import tempfile
import threading
from pathlib import Path

import torch
from captures import parquet, shard, take
from tiny_teacher import text, write_teacher
from tqdm import tqdm

torch.set_num_threads(1)  # no thread is started here: it would not be there in a fork
tqdm.set_lock(threading.RLock())  # its own is shared by all forks, and one that is killed would hold it for ever

with tempfile.TemporaryDirectory() as folder:
    here = Path(folder)
    documents = parquet(here, [text(5, i) for i in range(4)])
    for codec in ("plain", "clusters"):
        manifest = shard(write_teacher(here / "teacher"), documents, documents={"limit": 2}, cache={"codec": codec, "calibration_rows": 5})
        take(manifest, here / codec)
