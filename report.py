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
from collections import defaultdict
from pathlib import Path


def write(*folders):
    """Write the page of these runs -> its path."""
    here = Path(__file__).parent
    runs = []
    for folder in map(Path, folders):
        run = dict(folder=folder.resolve().name)
        # config.json first: where it is not there, no run is.
        for file in [folder / "config.json", *folder.glob("*.json*")]:
            run[file.name] = file.read_text()
        runs.append(run)
    data = json.dumps(dict(runs=runs, docs=(here / "docs/metrics.md").read_text()))
    # Packed, the data hold no text that could be HTML.
    packed = base64.b64encode(gzip.compress(data.encode(), 5)).decode()
    page = (here / "docs/report_page.html").read_text().replace("PACKED", packed)

    folder = Path(folders[0])
    if len(folders) > 1:
        folder = folder.parent
    path = folder / "report.html"
    path.write_text(page)
    return path


def sample_of(trajectory, tokenizer):
    """A Trajectory for JSON, with the text of each token: see `token_texts`."""
    return vars(trajectory) | dict(
        texts=token_texts(trajectory.token_ids, tokenizer.backend_tokenizer),
        reward=trajectory.reward, turns=[vars(turn) for turn in trajectory.turns],
        old_logprobs=[round(x, 3) for x in trajectory.old_logprobs])


def token_texts(token_ids, tokenizer):
    """The text of each token; the last token of a character has it. Of "né", where the two bytes of
    "é" are a token each: ["n", "", "é"]."""
    # Behind another token, because the first space of a text may be dropped.
    start = len(tokenizer.decode([0], skip_special_tokens=False))
    texts = []
    held = [0]
    for token in token_ids:
        held.append(token)
        text = tokenizer.decode(held, skip_special_tokens=False)[start:]
        # It ends within a character, of which there are at most four tokens.
        if text.endswith("\ufffd") and len(held) < 5:
            text = ""
        else:
            held = [0]
        texts.append(text)
    return texts


def text_of(sample):
    """The episode as text; what the policy sampled stands between ⟦ and ⟧."""
    # What is written before each token, and at the end.
    marks = defaultdict(str)
    for turn in sample["turns"]:
        marks[turn["start"]] += "⟦"
        end = "⟧ (reward {reward:g})"
        if turn["valid"] is False:
            end = "⟧ (reward {reward:g}, not understood)"
        marks[turn["end"]] += end.format_map(turn)
    for start in sample["contexts"][1:]:
        marks[start] += "\n--- a context of its own:\n"
    text = ""
    for place, piece in enumerate([*sample["texts"], ""]):
        text += marks[place] + piece
    how = "\n[{env} {task_id}: return {reward:g}, score {score:g}, truncated: {truncated}]"
    if sample["done"]:
        how = "\n[{env} {task_id}: return {reward:g}, score {score:g}, done]"
    return text + how.format_map(sample)


def main(argv=None):
    parser = ArgumentParser(description=__doc__, formatter_class=RawTextHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="RUN", help="the folder of a run")
    parser.add_argument("--text", action="store_true", help="print episodes, write no page")
    parser.add_argument("--step", type=int, help="with --text: of this step alone")
    flags = parser.parse_args(argv)
    for folder in flags.runs:
        if not Path(folder, "config.json").exists():
            there = sorted(str(path.parent) for path in Path("runs").glob("*/config.json"))
            parser.error(f"{folder} is not a run's folder: it has no config.json; there are: "
                         f"{', '.join(there) or 'none in runs/'}")
    try:
        if flags.text:
            print_samples(Path(flags.runs[0], "samples.jsonl"), flags.step)
        else:
            print(write(*flags.runs))
    except FileNotFoundError as error:
        parser.error(f"there is no {error.filename}; expected a run's folder, runs/NAME")
    except OSError as error:
        parser.error(str(error))


def print_samples(path, step):
    """Print the episodes of a file, those of one step or, without one, all."""
    for line in path.open():
        sample = json.loads(line)
        if step in (None, sample["step"]):
            print("---- step {step}, {split} ----".format_map(sample))
            print(text_of(sample))


if __name__ == "__main__":
    # `| head` ends it without a word.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    main()
