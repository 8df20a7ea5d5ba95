"""flags: what a user may turn."""
import argparse
import inspect
import re
from dataclasses import dataclass, fields
from typing import Literal, get_args



def number(kind, words, fits):
    """A type of flags: text -> a number of this kind for which fits(x), as NaN never does."""
    def read(text):
        if fits(x := kind(text)):
            return x
        raise argparse.ArgumentTypeError(f"{text}: expected {words}")
    read.__name__ = kind.__name__
    return read
Count = number(int, "1 or more", lambda x: x >= 1)
Natural = number(int, "0 or more", lambda x: x >= 0)
Positive = number(float, "above 0", lambda x: x > 0)
NonNegative = number(float, "0 or more", lambda x: x >= 0)
Share = number(float, "from 0 to 1", lambda x: 0 <= x <= 1)


@dataclass
class Worlds:
    # what is played
    env: str = "textcraft_small"  # a file of envs/, or several, comma-separated
    data: str = ""                # FOLDER to play with, or NAME=FOLDER,... (docs/environments.md)
    families: str = ""            # only these families of tasks, comma-separated; empty: all


@dataclass
class Plays:
    # by which servers
    env_url: str = ""             # servers, comma-separated; empty: a local one is started
    max_concurrent: Count = 256   # episodes in play at a time


@dataclass
class Machine:
    # on which machine
    device: str = "auto"          # auto: cuda if there is one; cpu, cuda, cuda:1
    attention: Literal["auto", "flash2", "varlen", "torch"] = "auto"     # auto: the fastest
    compute: Literal["auto", "float32", "bfloat16"] = "auto"   # auto: bfloat16 on cuda
    shard: Literal["full", "none"] = "full"     # none: each rank holds all weights, not a share
    micro_tokens: Count = 8192    # tokens whose activations are in memory at a time
    checkpointing: bool = False   # recompute activations in the backward pass


def parse_flags(kind, argv=None, description="", preset=lambda given: {}):
    """The flags --field-name VALUE of a dataclass -> one of it; a wrong flag ends the process with
    a sentence. A field's type is bool, tuple, a Literal, a dict whose keys may be chosen, or reads
    a text. --help shows the dataclass's lines, then the choices of the flags that have some.
    preset(given) -> {field: value}, stronger than the defaults, weaker than the flags."""
    parser = argparse.ArgumentParser(
        description=f"{description}\nCount: 1 or more. Natural: 0 or more. Share: from 0 to 1. "
                    f"tuple: 6,10\n{documented(kind)}",
        formatter_class=argparse.RawDescriptionHelpFormatter, argument_default=argparse.SUPPRESS,
        usage="%(prog)s [--FLAG VALUE ...]; --help lists all", allow_abbrev=False)
    for f in fields(kind):
        if f.type is bool:
            how = dict(action=argparse.BooleanOptionalAction)
        elif choices := f.type if type(f.type) is dict else get_args(f.type):
            how = dict(choices=choices, metavar=" | ".join(choices))
        else:
            how = dict(type=integers if f.type is tuple else f.type, help=argparse.SUPPRESS)
        parser.add_argument("--" + f.name.replace("_", "-"), **how)
    given = vars(parser.parse_args(argv))
    return kind(**preset(given) | given)


def integers(text):
    return tuple(map(int, text.split(",")))


def documented(kind):
    """The fields of a dataclass as flags: --name and the rest of the line in its source, under the
    comments above them, bases first. Of a field that a later class has again, the later line."""
    lines = {}
    for line in "".join(map(inspect.getsource, kind.__mro__[-2::-1])).splitlines():
        if heading := re.match("    # (.+)", line):
            lines[line] = f"\n{heading[1]}:"
        elif flag := re.match(r"    (\w+)(: .+)", line):
            lines[flag[1]] = f"  --{flag[1].replace('_', '-')}{flag[2]}"
    return "\n".join(lines.values())


def part_of(settings, *kinds):
    """Those of the settings, {name: value}, that are fields of these dataclasses."""
    names = {f.name for kind in kinds for f in fields(kind)}
    return {name: value for name, value in settings.items() if name in names}


