"""report: a run as a page, several runs side by side, episodes as text.

    python report.py runs/NAME                     writes runs/NAME/report.html
    python report.py runs/ONE runs/OTHER ...       writes runs/report.html: the runs side by side
    python report.py --text runs/NAME --step 40    prints the episodes that are kept of a step

A page is docs/report_page.html with the folders' files inside; its script reads and draws them.
"""
import base64
import gzip
import json
import signal
from argparse import ArgumentParser, RawTextHelpFormatter
from pathlib import Path


def write(*folders):
    """Write the page of these runs -> its path. Packed data hold no text that could be HTML."""
    here, (first, *others) = Path(__file__).parent, map(Path, folders)
    runs = [dict(folder=folder.resolve().name) | {file.name: file.read_text() for file in (
        folder / "config.json", *folder.glob("*.json*"))} for folder in (first, *others)]
    data = json.dumps(dict(runs=runs, docs=(here / "docs/metrics.md").read_text()))
    packed = base64.b64encode(gzip.compress(data.encode(), 5)).decode()
    path = (first.parent if others else first) / "report.html"
    path.write_text((here / "docs/report_page.html").read_text().replace("PACKED", packed))
    return path


def sample_of(trajectory, tokenizer):
    """A Trajectory for JSON, with each token's text; the last token of a character has it."""
    decode, texts, held = tokenizer.backend_tokenizer.decode, [], []
    start = len(decode([0], skip_special_tokens=False))     # a text's first space may be dropped
    for token in trajectory.token_ids:
        held = held + [token] if texts and not texts[-1] else [0, token]
        text = decode(held, skip_special_tokens=False)[start:]
        texts.append("" if text.endswith("\ufffd") and len(held) < 5 else text)
    return vars(trajectory) | dict(
        texts=texts, reward=trajectory.reward, turns=[vars(turn) for turn in trajectory.turns],
        old_logprobs=[round(x, 3) for x in trajectory.old_logprobs])


def text_of(sample):
    """The episode as text; what the policy sampled stands between ⟦ and ⟧."""
    marks = [""] * (len(sample["texts"]) + 1)       # what is written before which token
    for turn in sample["turns"]:
        understood = ", not understood" * (turn["valid"] is False)
        marks[turn["start"]] += "⟦"
        marks[turn["end"]] += f"⟧ (reward {turn['reward']:g}{understood})"
    for start in sample["contexts"][1:]:
        marks[start] += "\n--- a context of its own:\n"
    text = "".join(mark + token for mark, token in zip(marks, [*sample["texts"], ""]))
    how = "{env} {task_id}: return {reward:g}, score {score:g}".format_map(sample)
    return f"{text}\n[{how}, {'done' if sample['done'] else 'truncated: ' + sample['truncated']}]"


def main(argv=None):
    parser = ArgumentParser(description=__doc__, formatter_class=RawTextHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="RUN", help="the folder of a run")
    parser.add_argument("--text", action="store_true", help="print episodes, write no page")
    parser.add_argument("--step", type=int, help="with --text: of this step alone")
    flags = parser.parse_args(argv)
    try:
        if not flags.text:
            return print(write(*flags.runs))
        for sample in map(json.loads, Path(flags.runs[0], "samples.jsonl").open()):
            if flags.step in (None, sample["step"]):
                print(f"---- step {sample['step']}, {sample['split']} ----\n{text_of(sample)}")
    except OSError as error:
        parser.error(str(error))


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)       # `| head` ends it without a word
    main()
