"""`pipeline demo`: the whole main job on the embedded teacher."""

from pipeline.commands.options import JsonOption, RootOption
from pipeline.commands.run import run


def demo(root: RootOption = None, as_json: JsonOption = False) -> None:
    """Run the experiment demo-2x2: one teacher pass over installed documents, four students, one report; minutes on a CPU."""
    run("demo-2x2", root=root, as_json=as_json)
