"""panel: signs that a run is about to collapse."""
import math
import statistics


def collapse_warnings(history, window=5):
    """Early signs of an Echo Trap: [(signal, sentence)], mostly empty.

    history: one dict per step. Read are success, reward_std (in-group), entropy, grad_norm, valid,
    distinct_3gram, response_length. Missing, None or NaN: not measured.
    Means over `window` steps are compared; the thresholds are ours. Success is
    falling   if it is 0.15 below its best of 2 windows;
    solved    if it is not falling, and at 0.9 or half of its way from the first steps to 1;
    rising    if it is not falling, and its best is in the last 2 windows, 0.03 above the first.
    Learning lowers reward std and entropy as well, so most signals count only if success is neither
    solved nor rising."""
    if len(history) < 2 * window:
        return []
    success = moving_mean(history, "success", window)
    falling = success[-1] < max(moving_mean(history, "success", 2 * window)) - 0.15
    solved = not falling and success[-1] >= min(0.9, 0.5 + 0.5 * success[0])
    best = success.index(max(success))
    recent = best >= len(success) - 2 * window
    rising = not falling and recent and success[best] > success[0] + 0.03
    warnings = []
    for signal, past, now, seen, meaning in echo_trap_signals(
            history, window, solved, falling, rising):
        if seen:
            figures = f"{signal} {past:.3g} -> {now:.3g}, success now {success[-1]:.0%}"
            warnings.append((signal, f"{meaning} ({figures})."))
    return warnings


def echo_trap_signals(history, window, solved, falling, rising):
    """Rows (signal, past, now, seen, meaning). Echo Trap (arXiv:2504.20073): reward std
    falls, entropy leaves its smooth decay, gradients spike, texts repeat, in this order usually.
    What was not measured is NaN, and no comparison with NaN is true."""
    stuck = not solved and not rising
    std, std_now = ends(history, window, "reward_std")
    share = 0.7 if falling else 0.5
    expected = std * shrinkage(history, window)
    entropy = moving_mean(history, "entropy", window)
    entropy_before = entropy[-1 - window]
    entropy_now = entropy[-1]
    low = min(filter(math.isfinite, entropy[:-window]), default=math.nan)
    high = max(1.5 * low, low + 0.2 * entropy[0])
    valid = max(moving_mean(history, "valid", window))
    _, valid_now = ends(history, window, "valid")
    distinct, distinct_now = ends(history, window, "distinct_3gram")
    norm = mean_of(history[:-window], "grad_norm", statistics.median)
    _, norm_now = ends(history, window, "grad_norm")
    length, length_now = ends(history, window, "response_length")
    changed = length_now < 0.5 * length or length_now > 2 * length
    return [
        ("reward_std",
         std, std_now,
         stuck and std_now < share * expected,
         "echo trap: the tries at a task earn the same, little but noise is left to learn from"),
        ("entropy",
         entropy_before, entropy_now,
         stuck and entropy_now < 0.5 * entropy_before,
         "echo trap: entropy leaves its smooth decay downwards"),
        ("entropy",
         low, entropy_now,
         stuck and entropy_now > high,
         "echo trap: entropy leaves its smooth decay upwards, towards gibberish"),
        ("valid",
         valid, valid_now,
         stuck and valid_now < valid - 0.1,
         "the policy forgets how actions are written"),
        ("distinct_3gram",
         distinct, distinct_now,
         stuck and distinct_now < 0.5 * distinct,
         "echo trap: the texts repeat themselves"),
        ("grad_norm",
         norm, norm_now,
         not solved and norm_now > 5 * norm,
         "echo trap: the gradient spikes, and few runs recover: go back to a checkpoint"),
        ("response_length",
         length, length_now,
         falling and changed,
         "echo trap: the answers shrink or swell")]


def shrinkage(history, window):
    """How much of the first in-group std may be left because more tasks are solved: returns of 0 or
    1 with the mean p have a std of at most sqrt(p (1 - p)), which falls as p nears 1."""
    success, success_now = ends(history, window, "success")
    if success_now <= success:
        return 1
    most = math.sqrt(max(success * (1 - success), 1e-6))
    most_now = math.sqrt(max(success_now * (1 - success_now), 1e-6))
    return min(1, most_now / most)


def ends(history, window, name):
    """mean_of a column over the first and over the last `window` steps."""
    return mean_of(history[:window], name), mean_of(history[-window:], name)


def moving_mean(history, name, window):
    """mean_of a column over every `window` successive steps, the earliest first."""
    return [mean_of(history[i:i + window], name) for i in range(len(history) - window + 1)]


def mean_of(rows, name, mean=statistics.fmean):
    """Mean of the finite numbers in a column; NaN where there are none."""
    values = [row[name] for row in rows if row.get(name) is not None and math.isfinite(row[name])]
    if not values:
        return math.nan
    return mean(values)
