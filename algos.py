"""algos: what the policy learns from, one function per equation; tensors in, tensors out.

rollout.py hands over a batch; train.py calls from here, in the order of this file: group filter,
rewards, advantages, per-token loss, weights; and once a step the collapse panel.

Letters: B trajectories (a group's members adjacent), G group_size, T tokens, N turns, V vocabulary,
P prompts. Column t of a (B, T) tensor speaks of token t. response_mask is 1 where the policy
sampled the token; turn_ids holds the index of the token's turn there. Everywhere below:
- A turn's reward sits on its last ACTION token. Observation tokens cost no gamma and no lambda.
- Off the mask anything may stand, NaN too: masks select (torch.where), because 0 * NaN is NaN.
  Every (B, T) result made with a mask is 0 there.
- A group of equal rewards, or of one, has advantage exactly 0: nothing to compare with.
- Statistics run over the whole batch, never over the part of it that happens to fit in memory.
"""
import math
import statistics

import torch


# ---- groups: (B,), one number per trajectory -> statistics of each task's group -----------------

def group_centred(rewards, group_size):
    """r_i - mean(r) inside each group: (B,) -> (B / G, G), float64; a constant group exactly 0.

    Constant is max - min <= 1e-6 max|r|: the same return summed in another order still counts.
    float64, because in float32 eight rewards of 0.1 differ from their own mean in the last digit,
    and dividing by a std of that size makes it a signal: -0.007 in GRPO, more with a smaller eps.
    """
    if group_size < 1 or len(rewards) % group_size:
        raise ValueError(f"{len(rewards)} rewards do not divide into groups of {group_size}")
    groups = rewards.double().reshape(-1, group_size)
    constant = groups.amax(1) - groups.amin(1) <= 1e-6 * groups.abs().amax(1)
    return torch.where(constant[:, None], 0.0, groups - groups.mean(1, keepdim=True))


def group_std(rewards, group_size):
    """sqrt(sum_i (r_i - mean(r))^2 / (G - 1)): (B,) -> (B / G,). A group of one: 0, not NaN."""
    squares = group_centred(rewards, group_size).square().sum(1)
    return (squares / max(group_size - 1, 1)).sqrt().float()


# ---- filters: (B,) raw task rewards -> indices of the groups to keep, ascending -----------------
# Before advantages, and before penalties, which give a group that failed throughout a spread.

def keep_varied(rewards, group_size):
    """Groups whose rewards are not all equal. DAPO, dynamic sampling (arXiv:2503.14476).

    May be empty. DAPO then plays new tasks until the batch is full: that loop is the caller's.
    """
    return group_std(rewards, group_size).nonzero().flatten()


def keep_most_uncertain(rewards, group_size, fraction):
    """The `fraction` of the groups with the largest reward std. StarPO-S (arXiv:2504.20073).

    floor(fraction * groups), at least one; ties go to the earlier group. fraction 1 keeps all.
    Below 1, a batch of nothing but constant groups returns none: it teaches nothing.
    """
    if not 0 < fraction <= 1:
        raise ValueError(f"fraction={fraction}: the share of groups to keep lies in (0, 1]")
    std = group_std(rewards, group_size)
    if fraction < 1 and not std.any():
        return std.nonzero().flatten()
    count = max(1, math.floor(fraction * len(std) + 1e-9))   # 0.29 * 100 is 28.999999999999996
    return std.argsort(descending=True, stable=True)[:count].sort().values


def keep_top_p(rewards, group_size, p):
    """Fewest groups that hold the share p of sum_g std_g. RAGEN-2, linear rule (arXiv:2604.06268).

    How many are kept follows the batch: at p = 0.9, eight alike stay eight, one informative group
    stays one. Ties go to the earlier group. A constant group never stays, so p = 1 is keep_varied.
    """
    if not 0 < p <= 1:
        raise ValueError(f"p={p}: the share of the summed std to keep lies in (0, 1]")
    std, order = group_std(rewards, group_size).double().sort(descending=True, stable=True)
    held_before = std.cumsum(0) - std
    kept = (held_before < (p - 1e-6) * std.sum()) & (std > 0)   # 1e-6: of ten alike, 0.9 are nine
    return order[kept].sort().values


# ---- rewards ------------------------------------------------------------------------------------

def overlong_penalty(response_lengths, max_length, buffer):
    """-clip((L - (L_max - L_buf)) / L_buf, 0, 1), added to a reward. DAPO (arXiv:2503.14476).

    response_lengths: (B,) ACTION tokens per trajectory; a long observation is not the agent's
    fault. Returns (B,): 0 up to L_max - L_buf tokens, then a line down to -1 at L_max.
    """
    if not 0 < buffer <= max_length:
        raise ValueError(f"buffer={buffer}: expected 1 to max_length={max_length} tokens")
    return -((response_lengths - (max_length - buffer)) / buffer).clamp(0, 1)


@torch.no_grad()
def kl_penalised_rewards(token_rewards, old_logprobs, ref_logprobs, response_mask, coef):
    """r_t - beta (log pi_old - log pi_ref) on action tokens: all (B, T). The KL as a reward.

    Apply it before any baseline. Here the KL is only a value: no gradient passes.
    """
    penalised = token_rewards - coef * kl_k1(old_logprobs, ref_logprobs)
    return torch.where(response_mask.bool(), penalised, 0.0)


# ---- advantages of trajectories: (B,) -> (B,), the same for every token -------------------------

def grpo_advantages(rewards, group_size, eps=1e-6):
    """A_i = (r_i - mean(r)) / (std(r) + eps). GRPO, outcome supervision (arXiv:2402.03300).

    The std is the sample's (G - 1). A constant group and a group of one give exactly 0.
    """
    centred = group_centred(rewards, group_size)
    return (centred / (group_std(rewards, group_size)[:, None] + eps)).flatten().float()


def dr_grpo_advantages(rewards, group_size):
    """A_i = r_i - mean(r). Dr. GRPO (arXiv:2503.20783): a std favours tasks of small spread."""
    centred = group_centred(rewards, group_size)
    return centred.flatten().float()


def rloo_advantages(rewards, group_size):
    """A_i = r_i - mean_{j != i}(r_j) = G / (G - 1) (r_i - mean(r)). RLOO (arXiv:2402.14740).

    The baseline leaves i out, so it does not depend on the actions it judges: no bias.
    A group of one gives 0 (some libraries return its raw reward).
    """
    centred = group_centred(rewards, group_size)
    return (centred * group_size / max(group_size - 1, 1)).flatten().float()


# ---- advantages of tokens: -> (B, T) ------------------------------------------------------------
# Each walks from the right and carries its running quantities unchanged over all off the mask.

@torch.no_grad()
def gae(token_rewards, values, response_mask, gamma, lam):
    """A_t = delta_t + gamma lambda A_t+, delta_t = r_t + gamma V_t+ - V_t (arXiv:1506.02438).

    t+ is the row's next ACTION token; after the last one V and A are 0. All (B, T).
    Returns (advantages, returns); returns = A + V is the critic's target, so whiten only A.
    """
    mask = response_mask.bool()
    advantages = torch.zeros_like(values)
    running = next_value = torch.zeros_like(values[:, 0])
    for t in reversed(range(values.shape[1])):
        here, reward, value = mask[:, t], token_rewards[:, t], values[:, t]
        delta = reward + gamma * next_value - value
        running = torch.where(here, delta + gamma * lam * running, running)
        next_value = torch.where(here, value, next_value)
        advantages[:, t] = torch.where(here, running, 0.0)
    return advantages, torch.where(mask, advantages + values, 0.0)


@torch.no_grad()
def turn_gae(token_rewards, values, response_mask, turn_ids, gamma, lam, turn_gamma):
    """Bi-level GAE of VAGEN and RAGEN (arXiv:2504.20073): over turns, then inside each turn.

    Over turns k, with r_k and V_k at the turn's last action token and gamma_H = turn_gamma:
        A_k = delta_k + gamma_H lambda A_{k+1},   delta_k = r_k + gamma_H V_{k+1} - V_k.
    Inside a turn: gae, but its last token earns A_k + V_k and bootstraps nothing.
    Shapes and results as in gae, which this equals for one turn. Turns end where turn_ids changes,
    not where a reward is non-zero: a turn that earned 0 is a turn. A reward before the last token
    (a KL penalty) counts inside its own turn only.
    """
    mask = response_mask.bool()
    advantages = torch.zeros_like(values)
    running = next_value = turn_running = turn_value = torch.zeros_like(values[:, 0])
    turn = torch.full_like(turn_ids[:, 0], -1)
    for t in reversed(range(values.shape[1])):
        here, reward, value = mask[:, t], token_rewards[:, t], values[:, t]
        end = here & (turn_ids[:, t] != turn)
        turn = torch.where(here, turn_ids[:, t], turn)
        turn_delta = reward + turn_gamma * turn_value - value
        turn_running = torch.where(end, turn_delta + turn_gamma * lam * turn_running, turn_running)
        turn_value = torch.where(end, value, turn_value)

        reward = torch.where(end, turn_running + value, reward)
        running, next_value = torch.where(end, 0.0, running), torch.where(end, 0.0, next_value)
        delta = reward + gamma * next_value - value
        running = torch.where(here, delta + gamma * lam * running, running)
        next_value = torch.where(here, value, next_value)
        advantages[:, t] = torch.where(here, running, 0.0)
    return advantages, torch.where(mask, advantages + values, 0.0)


def reinforce_pp_advantages(token_rewards, response_mask, gamma):
    """A = whiten(R), R_t = r_t + gamma R_t+. REINFORCE++ (arXiv:2501.03262). All (B, T).

    No critic, no group: the batch is the baseline. With kl_penalised_rewards and gamma = 1, R_t is
    the paper's R - beta sum_{s >= t} KL_s.
    """
    mask = response_mask.bool()
    returns = torch.zeros_like(token_rewards)
    running = torch.zeros_like(token_rewards[:, 0])
    for t in reversed(range(token_rewards.shape[1])):
        here, reward = mask[:, t], token_rewards[:, t]
        running = torch.where(here, reward + gamma * running, running)
        returns[:, t] = running
    return masked_whiten(returns, mask)


def reinforce_pp_baseline_advantages(rewards, group_size, response_mask):
    """A = whiten(r_i - mean(r)). REINFORCE++-baseline (arXiv:2501.03262). (B,) -> (B, T).

    The group mean includes i; no group std: the batch sets the scale. The batch mean that whitening
    subtracts is weighted by tokens, so a constant group is 0 only up to that shift.
    """
    centred = group_centred(rewards, group_size).flatten().float()
    return masked_whiten(centred[:, None].expand(response_mask.shape), response_mask)


def masked_whiten(x, mask):
    """(x - mu) / sqrt(var + 1e-8) over the whole mask, var with sum(mask) - 1; 0 off the mask.

    (B, T) -> (B, T), every token alike. Equal values, or one alone, give 0; an empty mask, zeros.
    """
    whitened = torch.zeros_like(x)
    selected = x[mask.bool()].double()   # float64: equal values become exactly 0
    if len(selected):
        centred = selected - selected.mean()
        var = centred.square().sum() / max(len(selected) - 1, 1)
        whitened[mask.bool()] = (centred / (var + 1e-8).sqrt()).to(x.dtype)
    return whitened


# ---- advantages of turns, without a critic: -> (B, T), the same for all tokens of a turn --------

def gigpo_advantages(token_rewards, response_mask, turn_ids, observation_hashes, group_size,
                     gamma=0.95, omega=1.0, normalise=True):
    """A = A^E(tau_i) + omega A^S(a_k). GiGPO (arXiv:2505.10978). Returns (B, T).

    A^E compares the episodes of a group: once per episode, not per turn, or long ones weigh more.
    A^S compares the returns R_k = sum_{l >= k} gamma^(l-k) r_l of all turns of the group that
    answered the SAME observation (an anchor state); one seen once adds 0. observation_hashes:
    (B, N) int64, what the agent read before each turn, -1 beyond its last turn. normalise=False
    leaves out both stds. Equal text is taken for equal state: biased where that is not so.
    """
    advantages = grpo_advantages if normalise else dr_grpo_advantages
    rewards = sum_turns(token_rewards, response_mask, turn_ids, observation_hashes.shape[1])
    episode = advantages(rewards.sum(1), group_size)

    returns = rewards.clone()
    for k in reversed(range(rewards.shape[1] - 1)):
        returns[:, k] += gamma * returns[:, k + 1]
    rows, turns = (observation_hashes != -1).nonzero(as_tuple=True)
    anchors = torch.stack([rows // group_size, observation_hashes[rows, turns]], dim=1)
    step = torch.zeros_like(rewards)
    step[rows, turns] = among_equals(advantages, returns[rows, turns], anchors)
    return per_token(episode[:, None] + omega * step, response_mask, turn_ids)


def mt_grpo_advantages(token_rewards, response_mask, turn_ids, group_size, alpha=1.0):
    """A_ik = norm(R_i) + alpha norm_k(r_ik). MT-GRPO (arXiv:2505.11821), for any number of turns.

    norm is GRPO's over the group; norm_k the same over its members that reached turn k. Returns
    (B, T). In the paper there are two turns, and the last has no turn term of its own.
    BIASED when episodes differ in their number of turns: whether turn k is reached is the policy's
    own doing, and norm_k takes E[r_k] from those that went on but nothing from those that stopped,
    as if every further turn cost its usual reward. Then prefer gigpo_advantages or turn_gae.
    """
    turn_count = int(torch.where(response_mask.bool(), turn_ids, 0).max()) + 1
    rewards = sum_turns(token_rewards, response_mask, turn_ids, turn_count)
    episode = grpo_advantages(rewards.sum(1), group_size)

    token_counts = sum_turns(torch.ones_like(token_rewards), response_mask, turn_ids, turn_count)
    rows, turns = token_counts.nonzero(as_tuple=True)
    peers = torch.stack([rows // group_size, turns], dim=1)
    turn = torch.zeros_like(rewards)
    turn[rows, turns] = among_equals(grpo_advantages, rewards[rows, turns], peers)
    return per_token(episode[:, None] + alpha * turn, response_mask, turn_ids)


def sum_turns(x, response_mask, turn_ids, turn_count):
    """x summed over the action tokens of each turn: (B, T) -> (B, N)."""
    mask = response_mask.bool()
    if ((turn_ids < 0) | (turn_ids >= turn_count))[mask].any():
        raise ValueError(f"turn_ids {turn_ids[mask].unique().tolist()} on action tokens: expected "
                         f"0..{turn_count - 1}")
    slots = torch.where(mask, turn_ids, turn_count)   # one slot more, for everything off the mask
    return x.new_zeros(len(x), turn_count + 1).scatter_add(1, slots, x)[:, :-1]


def per_token(x, response_mask, turn_ids):
    """The number of its turn for every action token, 0 elsewhere: (B, N) -> (B, T)."""
    mask = response_mask.bool()
    return torch.where(mask, x.gather(1, torch.where(mask, turn_ids, 0)), 0.0)


def among_equals(advantages, x, labels):
    """advantages(x, size) inside each set of equally labelled x: (K,), labels (K, 2) -> (K,)."""
    result = torch.zeros_like(x)
    _, label_ids, sizes = labels.unique(dim=0, return_inverse=True, return_counts=True)
    for label_id, size in enumerate(sizes.tolist()):
        if size > 1:
            members = label_ids == label_id
            result[members] = advantages(x[members], size).to(x.dtype)
    return result


# ---- losses per token, to be minimised ----------------------------------------------------------
# Aligned tensors, (B, T) or packed (tokens,), -> that shape. What each place counts: the weights.

def clipped_surrogate(logprobs, old_logprobs, advantages, clip_low, clip_high, dual_clip=None):
    """max(-rho A, -clip(rho, 1 - e_low, 1 + e_high) A), rho = pi / pi_old (arXiv:1707.06347).

    PPO's loss. e_high > e_low lets rare good tokens grow (DAPO, arXiv:2503.14476). dual_clip c
    bounds it by -c A where A < 0 (arXiv:1912.09729, c = 3). log rho is clamped to +-20: beyond, no
    gradient. advantages: shaped like logprobs, or (B, 1).
    """
    if advantages.dim() != logprobs.dim():   # (B,) would silently be read as (T,)
        raise ValueError(f"advantages {tuple(advantages.shape)} do not align with logprobs "
                         f"{tuple(logprobs.shape)}: use advantages[:, None]")
    if dual_clip is not None and dual_clip <= 1:
        raise ValueError(f"dual_clip={dual_clip}: c must exceed 1, the ratio of an unmoved policy")
    logprobs = quarantine(logprobs, old_logprobs, advantages)
    ratio = (logprobs - old_logprobs).clamp(-20, 20).exp()
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high)
    loss = torch.maximum(-advantages * ratio, -advantages * clipped)
    if dual_clip is not None:
        loss = torch.where(advantages < 0, torch.minimum(loss, -dual_clip * advantages), loss)
    return loss


def gspo_surrogate(logprobs, old_logprobs, advantages, response_mask, clip_low, clip_high):
    """clipped_surrogate with one ratio per row, exp(mean_t log rho_it). GSPO (arXiv:2507.18071).

    The mean is over the row's action tokens, hence clips as small as 3e-4. (B, T) -> (B, T): each
    action token holds its row's loss, for sequence_weights to average; 0 off the mask.
    """
    mask = response_mask.bool()
    log_ratio = torch.where(mask, logprobs - old_logprobs, 0.0).sum(1, keepdim=True)
    log_ratio = log_ratio / mask.sum(1, keepdim=True).clamp(min=1)
    return clipped_surrogate(log_ratio, torch.zeros_like(log_ratio),
                             torch.where(mask, advantages, 0.0), clip_low, clip_high)


def clipped_value_loss(values, old_values, returns, clip):
    """1/2 max((V - R)^2, (V_c - R)^2), V_c = V_old + clip(V - V_old, -e, e). PPO's first code.

    clip=math.inf is the plain squared error. returns: those of gae, not whitened.
    """
    values = quarantine(values, old_values, returns)
    clipped = old_values + (values - old_values).clamp(-clip, clip)
    return 0.5 * torch.maximum((values - returns).square(), (clipped - returns).square())


# k1, k2, k3: J. Schulman, "Approximating KL divergence" (2020); q = log pi - log pi_ref.

def kl_k1(logprobs, ref_logprobs):
    """q, with mean KL(pi || ref). For the reward: as a loss its expected gradient is 0."""
    return quarantine(logprobs, ref_logprobs) - ref_logprobs


def kl_k2(logprobs, ref_logprobs):
    """q^2 / 2, |q| clamped to 20. Biased as a value; on-policy its gradient is KL(pi || ref)'s."""
    return kl_k1(logprobs, ref_logprobs).clamp(-20, 20).square() / 2


def kl_k3(logprobs, ref_logprobs):
    """exp(-q) + q - 1 >= 0, |q| clamped to 20. Unbiased, quiet; GRPO's (arXiv:2402.03300)."""
    q = kl_k1(logprobs, ref_logprobs).clamp(-20, 20)
    return torch.expm1(-q) + q   # expm1: exp(-q) - 1 has no digits left near q = 0


def entropy(logits, chunk=2**24):
    """H = -sum_v p_v log p_v: (..., V) -> (...), float32. A logit of -inf (forbidden) adds 0.

    Give the logits at the sampling temperature. `chunk`: numbers worked on at a time, see Entropy.
    """
    rows = logits.reshape(-1, logits.shape[-1])
    return Entropy.apply(rows, max(1, chunk // rows.shape[1])).view(logits.shape[:-1])


class Entropy(torch.autograd.Function):
    """H and dH/dz_v = -p_v (log p_v + H) of (K, V) logits z, some rows at a time.

    Autograd would keep p and log p for the backward pass: two more tensors of the logits' size, in
    float32. Here p is made again, and beside the logits and their gradient there is one chunk.
    """

    @staticmethod
    def forward(ctx, rows, size):
        ctx.save_for_backward(rows)
        ctx.size = size
        return torch.cat([Entropy.of(part)[0] for part in rows.split(size)])

    @staticmethod
    def backward(ctx, grad):
        [rows] = ctx.saved_tensors
        result = torch.empty_like(rows)
        for part, g, out in zip(*(x.split(ctx.size) for x in (rows, grad[:, None], result))):
            H, p, logprobs = Entropy.of(part)
            out.copy_(torch.where(g != 0, -g * p * (logprobs + H[:, None]), 0.0))
        return result, None

    @staticmethod
    def of(rows):
        logprobs = rows.float().log_softmax(-1).clamp(min=-1e9)   # 0 * -inf would be NaN
        p = logprobs.exp()
        return -(p * logprobs).sum(-1), p, logprobs


def quarantine(x, *others):
    """x; but NaN, and closed to gradients, wherever x or one of the others is not finite.

    Weight 0 makes the gradient of the loss 0 there, and the chain rule would go on with 0 * NaN.
    """
    finite = x.isfinite()
    for other in others:
        finite = finite & other.isfinite()
    return x.masked_fill(~finite, math.nan)   # no gradient enters a filled place


# ---- weights: what each token counts in the loss, (B, T) -> (B, T), 0 off the mask --------------
# Made from the WHOLE batch and split with it: then the gradient is the same however it is split.
# S counts the rows that have an action token. Here the papers differ.

def token_weights(response_mask):
    """1 / (tokens in the batch): every sampled token alike. DAPO (arXiv:2503.14476)."""
    mask = response_mask.bool().float()
    return mask / mask.sum().clamp(min=1)


def sequence_weights(response_mask):
    """1 / (S * tokens in the row): every trajectory alike. GRPO (arXiv:2402.03300)."""
    mask = response_mask.bool().float()
    return mask / mask.sum(1, keepdim=True).clamp(min=1) / mask.any(1).sum().clamp(min=1)


def sequence_sum_weights(response_mask):
    """1 / S: a trajectory counts as long as it is, as in the policy gradient of sum_t log pi."""
    mask = response_mask.bool().float()
    return mask / mask.any(1).sum().clamp(min=1)


def constant_weights(response_mask, length):
    """1 / (S * length), length a constant like the token budget. Dr. GRPO (arXiv:2503.20783)."""
    if length <= 0:
        raise ValueError(f"length={length}: expected a positive number of tokens")
    return sequence_sum_weights(response_mask) / length


@torch.no_grad()
def importance_weights(old_logprobs, rollout_logprobs, cap):
    """min(pi_old / pi_rollout, cap): a factor of the weights where sampler and trainer differ.

    Truncated importance sampling; all (B, T). Exactly 1 where they agree; 0 at a NaN (no sample).
    """
    ratio = (old_logprobs - rollout_logprobs).clamp(-20, 20).exp()
    return ratio.clamp(max=cap).nan_to_num(nan=0.0)


def weighted_sum(loss, weights):
    """sum of weight * loss over the places whose weight is not 0: elsewhere loss may be NaN.

    A scalar. Over micro-batches these add up to the batch's; a mean of their means does not.
    """
    return (torch.where(weights != 0, loss, 0.0) * weights).sum()


# ---- the collapse panel: why a run dies, while it still lives -----------------------------------

def distinct_ngrams(token_lists, n=3):
    """Distinct n-grams / all n-grams of the sampled texts (lists of token ids): 1 never repeats.

    1 where no text is n long. More text repeats more: compare the steps of a run, not two runs.
    """
    ngrams = [tuple(ids[i:i + n]) for ids in token_lists for i in range(len(ids) - n + 1)]
    return len(set(ngrams)) / len(ngrams) if ngrams else 1.0


def mutual_information(scores, own):
    """I(X; Z) ~ mean_i [L_i,own(i) - log mean_j exp L_ij], nats, <= log P (arXiv:2604.06268).

    scores (N, P): L_ij = log p(Z_i | X_j), thought i under prompt j, SUMMED over its tokens (a mean
    over tokens would give no mutual information). own (N,): the column of the prompt that thought i
    answered. Near 0 the thoughts do not depend on the prompt. Returns a float.
    """
    check_scores(scores, own)
    matched = scores.double().gather(1, own[:, None])
    marginal = scores.double().logsumexp(1, keepdim=True) - math.log(scores.shape[1])
    return (matched - marginal).mean().item()


def retrieval_accuracy(scores, own):
    """How often argmax_j L_ij is the thought's own prompt: chance is 1 / P. Arguments as above.

    Columns that tie share the point: thoughts that ignore the prompt score exactly chance.
    """
    check_scores(scores, own)
    best = scores == scores.amax(1, keepdim=True)
    return (best.gather(1, own[:, None]) / best.sum(1, keepdim=True)).mean().item()


def check_scores(scores, own):
    if scores.dim() != 2 or own.shape != scores.shape[:1] or len(own) == 0:
        raise ValueError(f"scores {tuple(scores.shape)} with own {tuple(own.shape)}: "
                         "expected (N, P) with (N,)")


def collapse_warnings(history, window=5):
    """Early signs of an Echo Trap or of template collapse: [(signal, sentence)], mostly empty.

    history: one dict per step. Read are success, reward_std (in-group), entropy, grad_norm, valid,
    distinct_3gram, response_length, and every k steps mutual_information and retrieval_accuracy
    (with retrieval_chance = 1 / P, else 0). Missing, None or NaN: not measured.
    Echo Trap (arXiv:2504.20073), in the usual order: reward std falls, entropy leaves its smooth
    decay, gradients spike, texts repeat. Template collapse (arXiv:2604.06268): texts stay varied
    but forget the prompt. A policy that solves its tasks loses reward std and entropy too, so these
    count only while success is neither near 1 nor rising. The last `window` steps are held against
    earlier ones; the thresholds are ours.
    """
    if len(history) < 2 * window:
        return []
    windows = [history[i:i + window] for i in range(len(history) - window + 1)]
    first, before, last = windows[0], windows[-1 - window], windows[-1]
    success = mean_of(last, "success")
    solved = success >= 0.9
    falling = success < max(mean_of(w, "success") for w in windows) - 0.1
    earlier = windows[-1 - 3 * window:][0]   # three windows back, or the first
    rising = not falling and success > mean_of(earlier, "success") + 0.03
    keep_uncertain = "train only on the quarter of the tasks with the largest in-group reward std"
    warnings = []

    def warn_outside(low, high, signal, meaning, past, now, change=keep_uncertain):
        if now < low or now > high:   # never true of NaN, which is what was not measured
            warnings.append((signal, f"{meaning} ({signal} {past:.3g} -> {now:.3g}, success now "
                                     f"{success:.0%}); StarPO-S would {change}."))

    if not solved and not rising:
        past, now = mean_of(first, "reward_std"), mean_of(last, "reward_std")
        warn_outside((0.7 if falling else 0.25) * past, math.inf, "reward_std",
                     "echo trap: all tries at a task earn the same, noise is left to learn from",
                     past, now)
        past, now = mean_of(before, "entropy"), mean_of(last, "entropy")
        warn_outside(0.5 * past, math.inf, "entropy",
                     "echo trap: entropy leaves its smooth decay downwards", past, now,
                     "raise clip_high to 0.28, so that rare tokens can grow, and " + keep_uncertain)
        past = min(mean_of(w, "entropy") for w in windows[:-window])
        warn_outside(0, max(1.5 * past, past + 0.2 * mean_of(first, "entropy")), "entropy",
                     "echo trap: entropy leaves its smooth decay upwards, towards gibberish",
                     past, now)
        past, now = max(mean_of(w, "valid") for w in windows), mean_of(last, "valid")
        warn_outside(past - 0.1, math.inf, "valid",
                     "the policy forgets how actions are written", past, now)
        past, now = mean_of(first, "distinct_3gram"), mean_of(last, "distinct_3gram")
        warn_outside(0.5 * past, math.inf, "distinct_3gram",
                     "echo trap: the texts repeat themselves", past, now,
                     "drop the KL, which holds on to one style, and " + keep_uncertain)
    if not solved:
        past = mean_of(history[:-window], "grad_norm", statistics.median)
        now = mean_of(last, "grad_norm")
        warn_outside(0, 5 * past, "grad_norm",
                     "echo trap: the gradient spikes, and few runs recover", past, now,
                     keep_uncertain + "; go back to a checkpoint and lower the learning rate")
    if falling:
        past, now = mean_of(first, "response_length"), mean_of(last, "response_length")
        warn_outside(0.5 * past, 2 * past, "response_length",
                     "echo trap: the answers shrink or swell", past, now)
    if not solved and not mean_of(last, "entropy") < 0.5 * mean_of(first, "entropy"):
        for signal in ("mutual_information", "retrieval_accuracy"):
            probes = [row for row in history if row.get(signal) is not None]
            if len(probes) >= 4:
                past, now = mean_of(probes[:2], signal), mean_of(probes[-2:], signal)
                chance = probes[-1].get("retrieval_chance") or 0 if "retrieval" in signal else 0
                warn_outside(chance + 0.25 * (past - chance), math.inf, signal,
                             "template collapse: entropy stands, but the thoughts hardly depend on "
                             "the prompt any more", past, now)
    return warnings


def mean_of(rows, name, mean=statistics.fmean):
    """Mean of the finite numbers in a column; NaN where there are none."""
    values = [row[name] for row in rows if row.get(name) is not None and math.isfinite(row[name])]
    return mean(values) if values else math.nan
