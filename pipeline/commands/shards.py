"""`pipeline shards`: the shard manifests that can be named, and what they say."""

from typing import Annotated

import typer
import yaml
from rich.table import Table

from pipeline.commands.options import JsonOption, SetOption, out, print_json
from pipeline.contract.manifest.find import load_shard, names
from pipeline.contract.manifest.overrides import read_overrides

app = typer.Typer(no_args_is_help=True, help="The shard manifests that can be named, and what they say.")


@app.command("ls", epilog="Example: pipeline shards ls")
def ls(as_json: JsonOption = False) -> None:
    """List the shards that can be named."""
    shards = {name: (path, load_shard(str(path))) for name, path in names("shards").items()}
    if as_json:
        rows = [{"name": name, "path": str(path), "teacher": s.teacher.model, "about": s.about} for name, (path, s) in shards.items()]
        print_json({"shards": rows})
        return
    table = Table("shard", "teacher", "training documents", "file")
    for name, (path, shard) in shards.items():
        table.add_row(name, shard.teacher.model, f"{shard.documents.limit:,}", str(path))
    out.print(table)


@app.command("show", epilog="Example: pipeline shards show fineweb-10bt")
def show(
    name: Annotated[str, typer.Argument(help="A shard's name, or a path to its YAML file.")],
    overrides: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print a shard manifest with its defaults filled in."""
    shard = load_shard(name, read_overrides(overrides or []))
    if as_json:
        print_json(shard.model_dump())
    else:
        out.print(yaml.safe_dump(shard.model_dump(), sort_keys=False, allow_unicode=True), end="")
