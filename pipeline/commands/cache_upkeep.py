"""`pipeline cache repair` and `gc`: mend a cache, and remove what no record names."""

from typing import Annotated

import typer

from pipeline.commands.options import JsonOption, RootOption, ShardOption, log, only_results_on_stdout, out, print_json
from pipeline.contract.layout import ArtifactRoot
from pipeline.shard_choice import cache_of


def repair(
    shard: ShardOption,
    force: Annotated[bool, typer.Option("--force", help="Although leases say that a worker may be writing.")] = False,
    root: RootOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make every file what it was: records from each other, payloads from the teacher, exactly those that are lost."""
    from stage1_teacher.repair import repair as repair_cache

    cache = cache_of(shard, ArtifactRoot.resolve(root))
    with only_results_on_stdout():
        done = repair_cache(cache, lambda record, reused, seconds: None if reused else log.print(f"{record.name}: done again"), force=force)
    found = [{"file": bad.file, "reason": bad.reason} for bad in done.found]
    if as_json:
        print_json({"ok": True, "mended": found, "remade": done.remade})
        return
    for bad in found:
        out.print(f"{bad['file']}: {bad['reason']}; mended")
    for name in done.remade:
        out.print(f"{name}: another device made it, its bytes differ from the lost ones; the manifest names the new ones")
    out.print(f"{cache}: {f'{len(found)} files mended' if found else 'nothing to mend'}, every byte verified")


def gc(
    shard: ShardOption,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Name the files and remove none.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Although leases say that a worker may be writing.")] = False,
    root: RootOption = None,
    as_json: JsonOption = False,
) -> None:
    """Remove payloads that no record names, old leases, and halves that killed writers left."""
    from stage1_teacher.collect_garbage import collect_garbage

    cache = cache_of(shard, ArtifactRoot.resolve(root))
    found = collect_garbage(cache, dry_run=dry_run, force=force)
    if as_json:
        print_json({"files": found.files, "bytes": found.bytes, "removed": not dry_run})
        return
    for name in found.files:
        out.print(name)
    out.print(f"{cache}: {len(found.files)} files, {found.bytes:,} bytes {'would be removed' if dry_run else 'removed'}")
