"""`pipeline cache`: look at a cache, prove it, mend it."""

from typing import Annotated, Any

import typer
from rich.table import Table

from pipeline.commands.cache_audit import audit
from pipeline.commands.cache_upkeep import gc, repair
from pipeline.commands.options import JsonOption, RootOption, ShardOption, log, out, print_json
from pipeline.contract.errors import CacheError, ManifestError
from pipeline.contract.layout import ArtifactRoot
from pipeline.shard_choice import CapturedShard, cache_of, captured_shard, root_hint

app = typer.Typer(no_args_is_help=True, help="Look at a cache, prove it, mend it.")
app.command("audit", epilog="Example: pipeline cache audit --shard installed-docs")(audit)
app.command("repair", epilog="Example: pipeline cache repair --shard installed-docs")(repair)
app.command("gc", epilog="Example: pipeline cache gc --shard installed-docs --dry-run")(gc)

SHOWN_ENTRIES = 5


@app.command("ls", epilog="Example: pipeline cache ls")
def ls(root: RootOption = None, as_json: JsonOption = False) -> None:
    """List the finished caches under the root."""
    from pipeline.contract.logit_cache.index import MANIFEST, read_manifest

    caches = ArtifactRoot.resolve(root).caches
    folders = [
        caches / name.removesuffix(f"/{MANIFEST}") for name in caches.names() if name.count("/") == 1 and name.endswith(f"/{MANIFEST}")
    ]
    rows = []
    for folder in folders:
        try:
            rows.append((folder, read_manifest(folder)))
        except CacheError as error:
            log.print(f"not listed: {error}")
    if as_json:
        listed = [{"shard": f.name, "fingerprint": m.fingerprint, "tokens": sum(s.tokens for s in m.splits.values())} for f, m in rows]
        print_json({"caches": listed})
        return
    table = Table("shard", "teacher", "train", "validation", "target tokens", "fingerprint")
    for folder, m in rows:
        counts = [f"{m.splits[split].documents:,}" if split in m.splits else "-" for split in ("train", "validation")]
        table.add_row(
            folder.name, m.shard["teacher"]["model"], *counts, f"{sum(s.tokens for s in m.splits.values()):,}", m.fingerprint[:12]
        )
    out.print(table)


@app.command("stats", epilog="Example: pipeline cache stats --shard installed-docs")
def stats(shard: ShardOption, root: RootOption = None, as_json: JsonOption = False) -> None:
    """Sizes and fidelity of a cache."""
    from pipeline.contract.logit_cache.statistics import cache_statistics

    figures = cache_statistics(_captured(shard, root).manifest)
    if as_json:
        print_json(figures)
        return
    bands, at_temperature = figures.pop("bands"), figures.pop("at_temperature", {})
    figures |= {f"{name}_at_{tau}": value for tau, part in at_temperature.items() for name, value in part.items()}
    for key, value in figures.items():
        out.print(f"{key:36s} {value:,.6g}" if isinstance(value, float) else f"{key:36s} {value}")
    table = Table("teacher's entropy, nats", *next(iter(bands.values())))
    for name, band in bands.items():
        table.add_row(name, *("-" if value is None else f"{value:,.4g}" for value in band.values()))
    out.print(table)


@app.command("verify", epilog="Example: pipeline cache verify --shard installed-docs --deep")
def verify(
    shard: ShardOption,
    deep: Annotated[bool, typer.Option("--deep", help="Hash every file and decode every document.")] = False,
    root: RootOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare what is on disk with what was written. Exit code 2 when something is not whole."""
    from pipeline.contract.logit_cache.verify import verify as verify_cache

    where = ArtifactRoot.resolve(root)
    cache = cache_of(shard, where)
    verdict = verify_cache(cache, deep=deep)
    if as_json:
        print_json(verdict.as_json())
        raise typer.Exit(2 if verdict.bad else 0)
    for bad in verdict.bad:
        out.print(f"{bad.file}: {bad.reason}")
    if verdict.bad:
        repair_command = f"pipeline cache repair --shard {shard}{root_hint(where)}"
        raise CacheError(f"{cache}: {len(verdict.bad)} files are not what was written; run '{repair_command}' to mend exactly those")
    out.print(f"{cache}: {verdict.shards} shards, all as written{' (hashes and every document)' if deep else ' (sizes and footers)'}")


@app.command("show", epilog="Example: pipeline cache show --shard installed-docs --document 0 --tokens 0:8")
def show(
    shard: ShardOption,
    document: Annotated[int, typer.Option(min=0, help="Index of the document in its split.")] = 0,
    tokens: Annotated[str, typer.Option(metavar="A:B", help="Positions to print.")] = "0:16",
    split: Annotated[str, typer.Option(help="train or validation.")] = "train",
    root: RootOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print tokens with the teacher's best five for the next one, tail mass and the label's logprob."""
    chosen = _captured(shard, root)
    rows = _rows(chosen, document, _span(tokens), split)
    if as_json:
        print_json({"shard": chosen.shard.name, "split": split, "document": document, "rows": rows})
        return
    table = Table("t", "token", "next (label)", "logprob", "tail", "teacher's best five")
    for row in rows:
        best = "  ".join(f"{entry['token']!r} {entry['probability']:.3f}" for entry in row["best"])
        table.add_row(str(row["t"]), repr(row["token"]), repr(row["label"]), f"{row['label_logprob']:.3f}", f"{row['tail_mass']:.4f}", best)
    out.print(table)


def _captured(shard: str, root: str | None) -> CapturedShard:
    return captured_shard(shard, ArtifactRoot.resolve(root), {})


def _span(text: str) -> slice:
    start, colon, stop = text.partition(":")
    if not (start.isdigit() and (not colon or stop.isdigit())):
        raise ManifestError(f"--tokens {text}: is not A:B with A < B; write for example --tokens 0:16")
    return slice(int(start), int(stop) if colon else int(start) + 1)


def _rows(chosen: CapturedShard, index: int, span: slice, split: Any) -> list[dict[str, Any]]:
    import numpy as np
    from tokenizers import Tokenizer

    from pipeline.contract.logit_cache import LogitCache

    cache = LogitCache.open(chosen.cache, split)
    if index >= len(cache):
        raise CacheError(f"--document {index}: split {split!r} of {chosen.cache} has documents 0 to {len(cache) - 1}; choose one of them")
    document, tokenizer = cache[index], Tokenizer.from_str(chosen.cache.read_bytes("teacher/tokenizer.json").decode())

    def text(token: Any) -> str:
        return tokenizer.decode([int(token)], skip_special_tokens=False)

    rows = []
    for t in range(*span.indices(document.tokens)):
        ids, logprobs = document.row(t)
        best = [
            {"id": int(i), "token": text(i), "probability": float(np.exp(p))} for i, p in zip(ids[:SHOWN_ENTRIES], logprobs, strict=False)
        ]
        rows.append(
            {
                "t": t,
                "token": text(document.token_ids[t]),
                "label": text(document.token_ids[t + 1]),
                "label_logprob": float(document.label_logprob[t]),
                "tail_mass": float(document.tail_mass[t]),
                "best": best,
            }
        )
    return rows
