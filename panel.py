"""panel: signs that a run is about to collapse."""
import math
import statistics


def collapse_warnings(history, window=5):
    """Early signs of an Echo Trap: [(signal, sentence)], mostly empty.

    history: one dict per step. Read are success, reward_std (in-group), entropy, grad_norm, valid,
    distinct_3gram, response_length. Missing, None or NaN: not measured.
    Means over `window` steps are compared; the thresholds are ours. Learning lowers reward std and
    entropy as well, so most signals count only while success is neither `rising`, its best in the
    last 2 windows, nor `solved`, half of its way from the first steps to 1, or when it falls."""
    if len(history) < 2 * window:
        return []
    success = moving_mean(history, "success", window)
    falling = success[-1] < max(moving_mean(history, "success", 2 * window)) - 0.15
    solved = not falling and success[-1] >= min(0.9, 0.5 + 0.5 * success[0])
    best = success.index(max(success))
    rising = not falling and success[best] > success[0] + 0.03 and best >= len(success) - 2 * window
    return [(signal, f"{meaning} ({signal} {past:.3g} -> {now:.3g}, success now "
                     f"{success[-1]:.0%}).")
            for signal, past, now, seen, meaning in echo_trap_signals(
                history, window, solved, falling, rising) if seen]


def echo_trap_signals(history, window, solved, falling, rising):
    """Rows (signal, past, now, seen, meaning). Echo Trap (arXiv:2504.20073): reward std
    falls, entropy leaves its smooth decay, gradients spike, texts repeat, in this order usually.
    What was not measured is NaN, and no comparison with NaN is true."""
    success, std, entropy, valid, distinct, length = (moving_mean(history, name, window) for name in
        ("success", "reward_std", "entropy", "valid", "distinct_3gram", "response_length"))
    # The std that returns of 0 or 1 can have is at most sqrt(p (1 - p)), so it falls as p nears 1.
    room = [math.sqrt(max(p * (1 - p), 1e-6)) for p in (success[0], success[-1])]
    expected = std[0] * (min(1, room[1] / room[0]) if success[-1] > success[0] else 1)
    before, last = entropy[-1 - window], entropy[-1]
    low = min(filter(math.isfinite, entropy[:-window]), default=math.nan)
    usual_norm = mean_of(history[:-window], "grad_norm", statistics.median)
    norm = mean_of(history[-window:], "grad_norm")
    stuck = not solved and not rising
    return [
        ("reward_std", std[0], std[-1], stuck and std[-1] < (0.7 if falling else 0.5) * expected,
         "echo trap: the tries at a task earn the same, little but noise is left to learn from"),
        ("entropy", before, last, stuck and last < 0.5 * before,
         "echo trap: entropy leaves its smooth decay downwards"),
        ("entropy", low, last, stuck and last > max(1.5 * low, low + 0.2 * entropy[0]),
         "echo trap: entropy leaves its smooth decay upwards, towards gibberish"),
        ("valid", max(valid), valid[-1], stuck and valid[-1] < max(valid) - 0.1,
         "the policy forgets how actions are written"),
        ("distinct_3gram", distinct[0], distinct[-1], stuck and distinct[-1] < 0.5 * distinct[0],
         "echo trap: the texts repeat themselves"),
        ("grad_norm", usual_norm, norm, not solved and norm > 5 * usual_norm,
         "echo trap: the gradient spikes, and few runs recover: go back to a checkpoint"),
        ("response_length", length[0], length[-1],
         falling and (length[-1] < 0.5 * length[0] or length[-1] > 2 * length[0]),
         "echo trap: the answers shrink or swell")]


def moving_mean(history, name, window):
    """mean_of a column over every `window` successive steps, the earliest first."""
    return [mean_of(history[i:i + window], name) for i in range(len(history) - window + 1)]


def mean_of(rows, name, mean=statistics.fmean):
    """Mean of the finite numbers in a column; NaN where there are none."""
    values = [row[name] for row in rows if row.get(name) is not None and math.isfinite(row[name])]
    return mean(values) if values else math.nan
