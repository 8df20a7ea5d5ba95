"""Wrong versions of this code, each of which a test must notice.

    python tests/wrong_versions.py                       all of them: a line each, and a summary
    python tests/wrong_versions.py --only algos.py       those of one file
    python tests/wrong_versions.py --sample 12 --seed 3  a dozen of them

FAULTS are single slips that a fork or a student could make: a sign, an off-by-one, max for min, the
old for the new. Each is put into a copy of this folder, where the test that it names must then fail
by an assertion. A fault that ends in an exception is no entry: anybody would notice it. To add one:
a piece of text that occurs once in the file, its wrong form, a test, with its file if several have
a test of this name. At most three to a function.

Each fault gets a process, forked from this one after the slow imports, which takes about a second.
"""
import argparse
import contextlib
import functools
import json
import os
import random
import shutil
import signal
import sys
import tempfile
from importlib.util import cache_from_source, find_spec
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"      # before torch: a forked process has none of its threads

ROOT = Path(__file__).resolve().parent.parent
SECONDS = 240                            # what a test may take before it counts as hung

FAULTS = {      # file -> [(a piece of its text, the wrong form, a test that must fail), ...]
    "algos.py": [
        ("weighted / weighted.sum().clamp", "weighted / (weighted > 0).sum().clamp",
         "test_over_weights_by_hand"),
        ("groups - groups.mean(1, keepdim=True)", "groups - groups.mean()",
         "test_dr_grpo_advantages_by_hand"),
        ("(squares / max(group_size - 1, 1))", "(squares / group_size)", "test_group_std_by_hand"),
        ("return group_std(rewards, group_size).nonzero().flatten()",
         "return (group_std(rewards, group_size) == 0).nonzero().flatten()",
         "test_keep_varied_drops_constant_groups"),
        ("std.argsort(descending=True, stable=True)", "std.argsort(stable=True)",
         "test_keep_most_uncertain_by_hand"),
        ("held_before < (p - 1e-6)", "held_before <= (p + 1e-6)", "test_keep_top_p_by_hand"),
        ("token_rewards - coef *", "token_rewards + coef *", "test_kl_penalised_rewards_by_hand"),
        ("group_std(rewards, group_size)[:, None] + eps", "rewards.std() + eps",
         "test_grpo_advantages_by_hand"),
        ("return group_centred(rewards, group_size).flatten()",
         "return grpo_advantages(rewards, group_size)", "test_dr_grpo_advantages_by_hand"),
        ("centred * group_size / max(group_size - 1, 1)", "centred",
         "test_rloo_advantages_by_hand"),
        ("torch.where(here, delta + gamma * lam * running, running)",
         "torch.where(here, delta + gamma * lam * running, 0.0)", "test_gae_by_hand"),
        ("gae(token_rewards, values, ends, turn_gamma, lam)",
         "gae(token_rewards, values, ends, gamma, lam)", "test_turn_gae_by_hand"),
        ("response_mask, gamma, 1.0)", "response_mask, 1.0, 1.0)",
         "test_reinforce_pp_advantages_by_hand"),
        ("    centred = group_centred(rewards, group_size).flatten()",
         "    centred = grpo_advantages(rewards, group_size).flatten()",
         "test_reinforce_pp_baseline_advantages_by_hand"),
        ("centred = selected - selected.mean()", "centred = selected",
         "test_masked_whiten_by_hand"),
        ("in reversed(range(rewards.shape[1] - 1))", "in range(rewards.shape[1] - 1)",
         "test_gigpo_advantages_discounts_over_all_later_turns"),
        ("(y.split(group_size) for y", "(y.split(len(y)) for y",
         "test_mt_grpo_advantages_by_hand"),
        ("torch.where(mask, turn_ids, turn_count)", "turn_ids.clamp(0, turn_count - 1)",
         "test_nan_and_junk_off_the_mask_change_nothing"),
        ("grpo_advantages(own[members], size)",
         "grpo_advantages(own.flatten(), own.numel()).view_as(own)[members]",
         "test_gigpo_advantages_by_hand"),
        ("torch.maximum(-advantages * ratio,", "torch.minimum(-advantages * ratio,",
         "test_clipped_surrogate_in_its_four_quadrants"),
        ("log_ratio = row_mean(logprobs - old_logprobs, rows)",
         "log_ratio = logprobs - old_logprobs", "test_gspo_surrogate_by_hand"),
        ("(sums / sizes)[row_ids]", "sums[row_ids]", "test_gspo_surrogate_by_hand"),
        ("0.5 * torch.maximum(", "0.5 * torch.minimum(", "test_clipped_value_loss_by_hand"),
        ("return logprobs - ref_logprobs", "return ref_logprobs - logprobs",
         "test_kl_estimators_by_hand"),
        (".clamp(-20, 20).square() / 2", ".clamp(-20, 20).square()", "test_kl_estimators_by_hand"),
        ("torch.expm1(-q) + q", "torch.expm1(q) - q", "test_kl_estimators_by_hand"),
        ("if len(set(shapes)) > 1", "if len(set(shapes)) > 9",
         "test_losses_refuse_shapes_that_would_be_broadcast"),
        ("mask / mask.sum().clamp(min=1)", "mask / mask.numel()", "test_token_weights_by_hand"),
        (".sum(1, keepdim=True).clamp(min=1) / mask.any(1).sum().clamp(min=1)",
         ".sum(1, keepdim=True).clamp(min=1) / len(mask)", "test_sequence_weights_by_hand"),
        ("return mask / mask.any(1).sum().clamp(min=1)", "return mask / len(mask)",
         "test_sequence_sum_weights_by_hand"),
        ("sequence_sum_weights(response_mask) / length",
         "sequence_sum_weights(response_mask) / response_mask.shape[1]",
         "test_constant_weights_by_hand"),
        ("range(len(ids) - n + 1)", "range(len(ids) - n)", "test_distinct_ngrams_by_hand"),
    ],
    "recipes/probe.py": [
        ("- math.log(scores.shape[1])", "", "test_mutual_information_by_hand"),
        ("(best.gather(1, own[:, None]) / best.sum(1, keepdim=True))",
         "best.gather(1, own[:, None]).double()",
         "test_mutual_information_of_thoughts_that_ignore_or_copy_the_prompt"),
        ("metrics.mean_of(probes[-2:], signal)", "metrics.mean_of(probes[-1:], signal)",
         "test_template_collapse_compares_the_first_two_probes_with_the_last_two"),
        ("for reply, _ in replies for prompt in prompts]",
         "for prompt in prompts for reply, _ in replies]",
         "test_probe_scores_every_reply_under_every_prompt"),
    ],
    "recipes/unexplored.py": [
        (" if world.module.NAME not in names}", "}", "test_unexplored_environments_are_left_out"),
    ],
    "curriculum.py": [
        ("step // switch_every,", "(step - 1) // switch_every,",
         "test_horizon_at_moves_on_with_the_steps_then_stays"),
        ('"train": module.TRAIN, "test": module.TEST',
         '"train": module.TRAIN, "test": module.TRAIN',
         "test_choose_tasks_takes_a_split_whole_or_a_fixed_sample_of_it"),
        ('f"{seed} epoch {epoch}"', 'f"{seed}"',
         "test_sample_tasks_deals_each_task_once_per_epoch"),
        ('",".join(name for name in wanted if name in module.FAMILIES)', '",".join(wanted)',
         "test_families_of_gives_each_environment_its_own"),
    ],
    "envs/openenv.py": [
        ("reward + before * (REWARD == \"sum\")", "reward + before",
         "test_the_last_reward_is_the_score_and_turns_add_up_to_it"),
        ("wrong and all(type(e)", "wrong and any(type(e)",
         "test_an_outage_is_no_reward_and_the_next_episode_is_played"),
        ("parse_constant=int", "parse_constant=lambda _: 0.0",
         "test_an_outage_is_no_reward_and_the_next_episode_is_played"),
        ("if done:\n            self.close()", "if False:\n            self.close()",
         "test_an_episode_is_the_frames_of_the_wire_and_gives_its_place_back_when_it_is_won"),
    ],
    "recipes/serve_openenv.py": [
        (" | {\"reward\": None})", ")", "test_ten_episodes_at_a_time_are_those_of_the_environment"),
        ("places.release()", "pass",
         "test_a_session_beyond_the_limit_is_told_so_and_a_closed_one_leaves_its_place"),
    ],
    "recipes/merge_lora.py": [
        ("model.lora.alpha / model.lora.rank * change", "change",
         "test_merge_lora_writes_an_ordinary_folder"),
    ],
    "recipes/overlong.py": [
        ("return -((response_lengths", "return ((response_lengths",
         "test_overlong_penalty_by_hand"),
        ("penalty[:, None] * train.last_action(mask)", "penalty[:, None] * mask",
         "test_overlong_replies_are_charged_their_action_tokens"),
    ],
    "recipes/refill.py": [
        ("[:cfg.tasks_per_step * cfg.group_size]", "",
         "test_refill_plays_other_tasks_until_the_batch_is_full"),
        ("1_000_003 * wave", "0 * wave", "test_refill_plays_other_tasks_until_the_batch_is_full"),
    ],
    "recipes/plan.py": [
        ("for x in sizes.keys() - weights)", "for x in sizes)",
         "test_counted_bytes_are_proportional_to_the_tokens"),
        ("-(-shape[0] // ranks)", "(shape[0] // ranks)",
         "test_plan_of_several_ranks_is_the_shard_that_fsdp_gives_the_first"),
        ("if found.need > 0.9 * memory:", "if found.need > memory:",
         "test_main_plan_prints_the_parts_and_leaves_a_tenth_to_what_is_not_counted"),
        ("if x < found.need]", "if x > found.need]",
         "test_main_refuses_what_cannot_fit_and_names_flags_that_help"),
    ],
    "parallel.py": [
        ("range(rank(), len(tasks), world_size())",
         "range(rank() * len(tasks) // world_size(), (rank() + 1) * len(tasks) // world_size())",
         "test_play_tasks_deals_places_round_robin_and_sorts_them_again"),
        ("min(max_tokens, -(-total // world_size()))", "max_tokens",
         "test_micro_batches_give_each_rank_its_share"),
        ("        if real:\n            row,", "        if True:\n            row,",
         "test_ranks_take_the_steps_of_one_process"),
        ("run.cfg.micro_tokens, run.cfg.temperature)", "run.cfg.micro_tokens, 1.0)",
         "test_update_of_rows_with_many_contexts_keeps_to_its_tokens"),
        ("    gc.collect()  ", "    pass  ", "test_load_lets_go_of_a_model_that_was_dropped"),
        ("@functools.cache  ", "# ", "test_load_gives_every_rank_its_rows"),
        (' or compute == "bfloat16":', ":",
         "test_start_of_one_process_in_16_bit_is_a_group_of_one"),
        ("        p.data = x.to(model.compute_dtype)", "        pass",
         "test_a_layer_of_a_decode_step_is_few_operations"),
        ("p.grad = summed(p.grad) / world_size()", "p.grad = summed(p.grad)",
         "test_average_gradients_takes_the_mean_of_adapters_alone"),
    ],
    "metrics.py": [
        ('mean_of(history[:-window], "grad_norm", statistics.median)',
         'mean_of(history[:-window], "grad_norm")',
         "test_collapse_warnings_compare_gradients_with_their_median"),
        (" and best >= len(success) - 2 * window", "",
         "test_collapse_warnings_are_silent_while_a_slow_success_sets_records"),
        ("min(filter(math.isfinite, entropy[:-window]), default=math.nan)",
         "min(entropy[:-window])",
         "test_collapse_warnings_pass_over_steps_in_which_nothing_was_learned"),
        ("before, last = entropy[-1 - window],", "before, last = entropy[-window],",
         "test_collapse_warnings_compare_windows_that_do_not_overlap"),
        ('random=players(run)["random"]["success"])', 'random=players(run)["expert"]["success"])',
         "test_main_evolves_and_reports"),
        ("run.cfg.horizons[-1], (run.cfg.seed, EVALUATION))",
         "run.cfg.horizons[0], (run.cfg.seed, EVALUATION))",
         "test_evaluations_are_as_many_as_were_asked_for_at_the_last_horizon"),
        ("for temperature in (0.0, 1.0))", "for temperature in (1.0, 1.0))",
         "test_evaluations_are_as_many_as_were_asked_for_at_the_last_horizon"),
        ("(logprobs - batch.old_logprobs).exp()", "(batch.old_logprobs - logprobs).exp()",
         "test_samples_hold_what_the_policy_gave_each_token"),
        ("if signal not in {name for", "if True or signal not in {name for",
         "test_record_names_a_warning_once"),
        ("min(file.tell(), run.written.get(name, 0))", "file.tell()",
         "tests/test_train.py::test_a_resumed_run_is_the_unbroken_one_to_the_bit"),
        ("algos.kl_k3(batch.old_logprobs[mask], batch.ref_logprobs[mask])",
         "algos.kl_k3(batch.ref_logprobs[mask], batch.old_logprobs[mask])",
         "test_of_batch_reads_the_sampled_tokens_alone"),
        ("tuple(run.eval_tasks), run.cfg.horizons[-1])", "tuple(run.eval_tasks), 1)",
         "test_the_curve_and_the_table_hold_what_was_measured"),
        ("figures[part(t)].append(getattr", "figures[played[0].env].append(getattr",
         "test_metrics_of_each_environment_are_what_its_episodes_say"),
    ],
    "report.py": [
        ('marks[turn["end"]] += f"', 'marks[turn["end"] - 1] += f"',
         "test_text_of_marks_exactly_the_trained_tokens"),
        ('"" if text.endswith("\\ufffd") and len(held) < 5 else text', "text",
         "test_sample_of_gives_a_character_in_pieces_to_its_last_token"),
    ],
    "docs/report_page.html": [
        ("!(x > wanted[`${key} to`])", "!(x >= wanted[`${key} to`])",
         "test_page_filters_and_shows_a_tokens_numbers"),
    ],
    "recipes/icepop.py": [
        ("(old_logprobs - rollout_logprobs).exp()", "(rollout_logprobs - old_logprobs).exp()",
         "test_importance_corrections_by_hand"),
    ],
    "recipes/trackers.py": [
        ('cuts = [0, *(turn[end]', 'cuts = [*(turn[end]',
         "test_trackers_are_told_the_figures_and_the_episodes"),
    ],
    "envs/parts/suites.py": [
        ("SynthLoc\"\"\".split(), 5)", "SynthLoc\"\"\".split(), 6)",
         "test_suites_count_as_in_the_papers"),
    ],
    "eval.py": [
        ('passed=sum(any(play["success"]', 'passed=sum(all(play["success"]',
         "test_figures_of_k_samples_a_task"),
        ("key=(cfg.seed,)", "key=(0,)", "test_run_measures_a_model"),
        ("min(cfg.horizon or world.module.HORIZON, ", "min(world.module.HORIZON, ",
         "test_run_measures_a_model"),
        ("turns, (cfg.seed, 0))", "turns, cfg.seed)",
         "test_the_random_players_row_is_what_the_random_player_gets"),
        ('MAY_CHANGE = {"out", ', 'MAY_CHANGE = {"out", "seed", ',
         "test_an_evaluation_that_was_killed_is_resumed"),
        ("split(os.sep)[-2:])", "split(os.sep)[-1:])",
         "test_the_folder_names_what_is_played_and_the_player"),
    ],
    "agentevol.py": [
        ("successes(explored, cfg.dedupe)              #",
         "successes(explored, True)              #",
         "test_evolve_merges_what_succeeded_with_the_base_set"),
        ("run.cfg.samples[min(run.step, len(run.cfg.samples) - 1)]", "run.cfg.samples[0]",
         "test_explore_follows_the_schedule_of_tries_and_repeats_its_last"),
        ("max(load_env(trajectory.env).SUCCESS, 1.0)", "load_env(trajectory.env).SUCCESS",
         "test_successes_are_above_a_threshold_and_rewards_shares_of_the_best_score"),
        ("kept.setdefault((t.env, t.task_id) if", "kept.setdefault(t.task_id if",
         "test_successes_are_the_first_of_each_task_or_all"),
        ("min(done / 0.05 + 0.02, 1)", "min(done / 0.5 + 0.02, 1)",
         "test_learn_rises_for_a_twentieth_and_falls_by_a_cosine_to_a_tenth"),
        ("loss = -(logprobs * part.weights[part.response_mask]).sum() * real",
         "loss = -(logprobs * part.weights[part.response_mask]).mean() * real",
         "test_learn_step_follows_the_weighted_log_likelihood"),
        ("if most < len(tasks):  ", "if False:  ",
         "test_lesson_plays_a_fair_choice_of_the_families_asked_for"),
        ("statistics.median(lengths) >", "min(lengths) >",
         "test_trajectories_of_refuses_limits_that_half_of_the_demonstrations_exceed"),
        ('else demo["last"], reward, done, info)', 'else demo["last"], 0.0, done, info)',
         "test_imitated_masks_exactly_the_replies"),
        ('(observation, thought, action, *_) in enumerate(demo["turns"])',
         '(observation, thought, action, *_) in enumerate(demos[0]["turns"])',
         "test_clone_of_two_environments_has_one_tokenizer_for_both"),
    ],
    "train.py": [
        ("part_of(asked, kind) | ALGOS[cfg.algo]", "ALGOS[cfg.algo] | part_of(asked, kind)",
         "test_what_a_rule_says_of_itself_wins_over_its_environment"),
        ("        set_learning_rate(run)\n", "",
         "test_every_update_has_the_rate_of_its_step_a_critics_a_constant_one"),
        ("(1 - cfg.lr_end) * run.step", "cfg.lr_end * run.step",
         "test_every_update_has_the_rate_of_its_step_a_critics_a_constant_one"),
        ("key=(cfg.seed, run.step, 0))", "key=(cfg.seed, 0, 0))",
         "test_play_step_gives_a_task_other_numbers_at_another_step"),
        ("return algos.masked_whiten(advantages, b.response_mask)", "return advantages",
         "test_credit_of_a_critic_is_whitened_and_its_returns_are_not"),
        ("(later == 1)", "(later >= 1)",
         "test_credit_of_a_critic_is_whitened_and_its_returns_are_not"),
        ('whole_rows = cfg.surrogate == "sequence"', "whole_rows = False",
         "test_update_of_rows_with_many_contexts_keeps_to_its_tokens"),
        ('if cfg.lora and "tiny" not in asked', "if cfg.lora and cfg.model",
         "test_defaults_follow_the_model"),
        ("(len(finite) or math.nan)", "max(len(finite), 1)",
         "test_a_step_without_a_varied_group_changes_nothing"),
        ('sums["value_loss"] / updates', 'sums["value_loss"]',
         "test_figures_are_means_over_tokens_and_over_updates"),
        ('entropy=True if cfg.entropy_coef else "watched"', "entropy=True",
         "test_part_loss_differentiates_the_entropy_only_where_it_counts"),
        ("algos.kl_k3(old_logprobs, logprobs).sum()", "algos.kl_k3(logprobs, old_logprobs).sum()",
         "test_part_figures_count_what_the_loss_clips"),
        ("for x in [loss, *norms])", "for x in norms)",
         "test_update_is_skipped_by_all_where_one_ranks_loss_is_not_finite"),
        ("if last or cfg.eval_every and run.step", "if cfg.eval_every and run.step",
         "test_evaluations_are_as_many_as_were_asked_for_at_the_last_horizon"),
        ("step=torch.zeros(()", "step=torch.ones(()",
         "test_save_before_any_update_leaves_the_optimizer_as_it_is"),
        ("lr=cfg.critic_lr))", "lr=cfg.lr))",
         "test_every_update_has_the_rate_of_its_step_a_critics_a_constant_one"),
        ("            signal.signal(signal.SIGTERM, signal.SIG_DFL)\n", "",
         "test_sigterm_ends_the_run_after_its_step_with_a_checkpoint"),
    ],
    "lora.py": [
        ("alpha=alpha / rank)", "alpha=alpha)",
         "test_adapt_has_the_output_and_gradients_of_a_low_rank_layer"),
        ("5 ** 0.5, generator=generator", "5 ** 0.5",
         "test_adapt_begins_with_the_base_to_the_bit_and_a_random_a"),
        ("lora_alpha=model.lora.alpha", "lora_alpha=model.lora.rank",
         "test_save_adapters_loads_in_peft_to_the_same_logits"),
        ("if config[k] != PLAIN[k]}", "if k not in config}",
         "test_load_adapters_refuses_what_it_would_compute_wrongly"),
    ],
    "engine.py": [
        ("torch.manual_seed(seed)", "torch.manual_seed(0)",
         "test_make_policy_is_a_function_of_its_seed"),
        ("init.zeros_(model.value_head.weight)", "init.ones_(model.value_head.weight)",
         "test_token_values_equal_the_stock_hidden_states"),
        ("is_causal=mask is None,", "is_causal=False,",
         "test_engine_logprobs_equal_stock_transformers"),
        ("tril().triu(1 - window)", "tril().triu(-window)",
         "test_attend_in_a_window_sees_the_last_tokens_only"),
        ("(key <= own - window)", "(key < own - window)",
         "test_attend_in_a_window_sees_the_last_tokens_only"),
        ("for x in (row, column, starts[row] + column))",
         "for x in (row, column, column))",
         "test_engine_logprobs_equal_stock_transformers"),
        ("before = window - 1 if", "before = window if",
         "test_windows_by_flash_equal_stock_transformers"),
        ("num_splits=None if window == (-1, -1) else 1", "num_splits=None",
         "test_every_pass_by_flash_equals_stock_transformers"),
        ('why = f"flash2: {missing}"', 'why = "no flash-attn installed"',
         "test_choose_kernel_takes_what_can_run_and_says_why_flash_attn_cannot"),
        ('by_page = pages.argsort(kind="stable")', "by_page = np.arange(len(pages))",
         "test_page_runs_read_a_shared_page_once_for_all_its_readers"),
        ("torch.baddbmm(bias,", "torch.baddbmm(0 * bias,",
         "test_walk_pages_is_softmax_attention_over_pages_in_any_order"),
        ("column] = heapq.heappop(self.free)", "column] = self.free.pop()",
         "test_pages_take_the_lowest_first_and_are_freed_with_their_last_row"),
        ("-(-length // self.page_size)):", "length // self.page_size + 1):",
         "test_no_page_is_lost_in_1000_random_schedules"),
        ("for page in pages[~np.isin(pages, self.table)].tolist()", "for page in pages.tolist()",
         "test_pages_take_the_lowest_first_and_are_freed_with_their_last_row"),
        ("+ (position % S)[:, None]", "+ ((position + 1) % S)[:, None]",
         "test_engine_logprobs_equal_stock_transformers"),
        ("zip(self.pools, (key, value)):", "zip(self.pools, (value, key)):",
         "test_engine_logprobs_equal_stock_transformers"),
        ("self.threads = 1 if work < SMALL_STEP", "self.threads = 1 if work > SMALL_STEP",
         "test_a_small_model_decodes_on_one_thread_and_gives_the_others_back"),
        ("heapq.heappush(self.free_rows, sequence.row)", "self.free_rows.append(sequence.row)",
         "test_no_page_is_lost_in_1000_random_schedules"),
        ("for pool in self.memory.pools:\n", "for pool in self.memory.pools[:1]:\n",
         "test_engine_logprobs_equal_stock_transformers"),
        ("sequence.length = full * self", "full * self",
         "test_forget_keeps_full_pages_and_leaves_those_that_are_shared_alone"),
        ("torch.stack([logits[i] for i in range(len(sequences))])",
         "torch.stack(list(logits.values()))", "test_engine_logprobs_equal_stock_transformers"),
        ("(sequences)) - len(self.pages.free)", "(sequences)) - len(self.pages.free) - 1",
         "test_no_page_is_lost_in_1000_random_schedules"),
        ('self.tokens["decode"] += len(starts)', 'self.tokens["decode"] += 1',
         "test_no_page_is_lost_in_1000_random_schedules"),
        ("(len(part) + 1) * lengths[i]", "len(part) * lengths[i]",
         "test_prefill_parts_keep_kinds_apart_and_bound_the_padding"),
        ("1 << (rows - 1).bit_length()", "1 << rows.bit_length()",
         "test_step_inputs_pads_to_powers_of_two_with_rows_of_one_spare_token"),
        ("inputs[inputs < 0] = pages.count", "pass",
         "test_step_inputs_pads_to_powers_of_two_with_rows_of_one_spare_token"),
        ("x.pin_memory().to(device, non_blocking=True) if", "x.to(device) if",
         "test_a_run_mixes_no_devices_and_waits_once_a_decode_step"),
        ("same_code(type(module).forward, LlamaRMSNorm.forward)",
         'type(module).__name__.endswith("RMSNorm")',
         "test_equip_leaves_norms_of_other_kinds_alone"),
        ("    del logits ", "    pass ",
         "test_plan_logits_are_as_many_as_a_chunk_holds_at_a_time"),
        ("target, right=True)", "target, right=False)",
         "test_sample_at_the_ends_never_picks_what_has_no_probability"),
        ("layer.training = model.is_activation_checkpointing and torch.is_grad_enabled()",
         "layer.train(model.is_activation_checkpointing and torch.is_grad_enabled())",
         "test_where_layers_are_checkpointed_nothing_is_dropped"),
        ("starts = torch.nonzero(positions == 0)[:, 0]",
         "starts = torch.nonzero(positions == 0)[:1, 0]",
         "test_token_logprobs_equal_the_stock_forward_one_by_one"),
        ("type(model).forward(headed).logits[0].float()", "model.lm_head(hidden).float()",
         "test_prepare_runs_what_the_table_says"),
        ("return out if bias is None else out + bias",
         "return (out if bias is None else out + bias).to(x.dtype)",
         "test_logits_of_16_bit_are_float32_in_sampler_and_trainer"),
        ("return g @ weight, g.T @ x if", "return g @ weight, 2 * g.T @ x if",
         "test_float32_linear_has_the_gradients_of_the_linear_layer"),
    ],
    "rollout.py": [
        ("if len(same) < slot.sequence.length:", "if True:",
         "test_collect_equals_play_where_a_new_context_repeats_more_than_is_cached"),
        ("(self.complaint or observation) if", "observation if",
         "test_episode_answers_a_refusal_alone_and_nothing_happens"),
        ("self.response_mask += [0] * len(token_ids)", "self.response_mask += [1] * len(token_ids)",
         "test_trajectory_lists_stay_parallel"),
        ("self.response_mask += [1] * len(token_ids)",
         "self.response_mask += [1] * (len(token_ids) - 1) + [0]",
         "test_mask_covers_exactly_what_was_sampled"),
        ("return self.token_ids[self.contexts[-1]:]", "return self.token_ids[self.contexts[0]:]",
         "test_trajectory_lists_stay_parallel"),
        ("failed.reward = 0.0 ", "pass ", "test_reflect_returns_what_the_last_try_was_paid"),
        ("same = os.path.commonprefix([before, slot.episode.seen[:-1]])", "same = before",
         "test_collect_equals_play_by_real_templates"),
        ("and end - begin > tokens:", "and end - begin >= tokens:",
         "test_batch_parts_keep_to_the_budget_and_cut_a_long_row_between_its_contexts"),
        ("(*trajectory.key, len(trajectory.turns))", "(*trajectory.key, len(self.history))",
         "test_reflect_returns_what_the_last_try_was_paid"),
        ("if token_ids[-1] != chat.stop_id:", "if not stopped:",
         "test_episode_ends_a_reply_with_any_stop_token_and_closes_it_with_the_templates"),
        ("uniform, episode.agent.temperature)", "uniform, 1.0)", "test_collect_equals_play"),
        ("(*key, places[group], member),\n", "(*key, group, member),\n",
         "test_collect_depends_on_nothing_but_task_and_key"),
        ("page_bytes = 2 * math", "page_bytes = math",
         "test_make_engine_has_room_for_what_it_is_asked"),
        ("logits[list(row.values())]", "logits[sorted(row.values())]", "test_collect_equals_play"),
        ("if token in self.agent.chat.stop_ids or", "if token == self.agent.chat.stop_id or",
         "test_episode_ends_a_reply_with_any_stop_token_and_closes_it_with_the_templates"),
        ("if pages <= len(free) - decoding]", "if pages <= len(free)]",
         "test_admit_counts_a_token_more_and_a_page_for_each_slot_that_decodes"),
        ("-(-(len(slot.episode.seen) + 1) //", "-(-len(slot.episode.seen) //",
         "test_admit_counts_a_token_more_and_a_page_for_each_slot_that_decodes"),
        ("range(end - start)", "range(start, end)",
         "test_to_batch_aligns_everything_with_its_token"),
        ("self.idle[slot.client].append(slot.session)",
         "next(iter(self.idle.values())).append(slot.session)",
         "test_collect_of_several_worlds_equals_play_in_each"),
        ('for slot in list(self.slots["in flight"]):', "for slot in list(answers):",
         "test_collect_does_not_depend_on_the_order_of_the_answers"),
        ("failures.append(str(error))", "failures.append(error)",
         "test_what_failed_does_not_keep_the_engine"),
    ],
    "client.py": [
        ("[replies[place] for place in range(len(items))]", "list(replies.values())",
         "test_answer_asks_two_servers_at_a_time_and_keeps_the_order"),
    ],
    "env_server.py": [
        ('asks = int(size) or "Origin" in self.headers', "asks = int(size)",
         "test_http_refuses_what_a_web_page_of_another_origin_can_send"),
        ('"reward": reward,\n', '"reward": info["score"],\n',
         "test_wires_are_the_original_ones"),
        ("self.sessions.pop(session_id, None)", "self.sessions.get(session_id)",
         "test_wires_are_the_original_ones"),
        ('status = 200 if service.wire.id_key == "id" else refusal.status',
         "status = refusal.status", "test_errors_in_the_manner_of_each_dialect"),
    ],
    "envs/__init__.py": [
        ("or not {*folders} <= {*names}:", "or not folders:",
         "test_open_envs_refuses_data_that_is_nobodys"),
        ('.strip("_") or "act"', '.strip() or "act"',
         "test_tools_of_webshop_are_agentgyms_functions"),
        ('if goal == "task" else', 'if goal == "other" else',
         "test_lesson_of_other_goals_never_sets_out_for_the_tasks_own"),
        ("if rng.random() > skill:", "if rng.random() < skill:",
         "test_record_is_what_the_environment_answered_the_expert_or_chance"),
        ('f"{name} {task_id} {stream}"', 'f"{name} {task_id}"',
         "test_reset_gives_a_group_one_prompt_and_many_reward_streams"),
        ('action.encode(errors="replace").decode()', "str(action)",
         "test_act_answers_in_the_originals_shapes"),
        ("0 < len(actions) == len(parts)", "len(actions) == len(parts)",
         "test_split_actions_reads_a_reply"),
        ('if game["success"]]', "if game]", "test_demonstrations_of_an_expert_are_successes"),
    ],
    "envs/parts/agentgym.py": [
        ("own = copy.copy(agent)", "own = agent",
         "test_imitated_of_a_file_keeps_each_items_own_words"),
        ('read_last, agreed="Ok.")', "read_last)", "test_episode_begins_as_agentgyms_conversation"),
        ("loss is False or loss is True and who", "loss in (0, 1) and who",
         "test_read_trajectories_names_the_item_and_the_field"),
        ('if demo["env"] in names]', "]",
         "test_read_trajectories_takes_the_names_of_agentgyms_files_and_leaves_others_out"),
        ('        if demo["success"]:\n', "        if True:\n",
         "test_write_trajectories_leaves_failures_out_and_overwrites_nothing"),
        (r"Action:\s*([^\n]*)", r"Action:([^\n]*)",
         "test_manner_read_takes_the_action_that_the_client_takes"),
    ],
    "envs/parts/tools.py": [
        ("before.rstrip(), arguments.strip()", "before.rstrip(), arguments.strip(' ')",
         "test_parse_reads_the_last_line"),
        ('or "Action Input:" in before or "\\n" in arguments', 'or "\\n" in arguments',
         "test_parse_reads_the_last_line"),
        (" or not LITERAL.fullmatch(text):", ":",
         "test_hostile_arguments_are_answered_run_nothing_and_change_nothing"),
        ("not -LARGEST <= value <= LARGEST", "abs(value) > LARGEST",
         "test_hostile_arguments_are_answered_run_nothing_and_change_nothing"),
        ("abs(found - wanted) <= 0.01", "abs(found - wanted) <= 0.1", "test_same_compares_answers"),
    ],
    "envs/parts/tool_rules.py": [
        ('forecast("get_rain_forecast", "rainfall")', 'forecast("get_rain_forecast", "snowfall")',
         "test_the_clients_rules_say_of_each_tool_what_its_name_says"),
    ],
    "envs/weather.py": [
        ('"higher" if more else "lower"', '"lower" if more else "higher"',
         "tests/test_env_weather.py::test_goals_ask_in_words_for_what_is_answered"),
        ("future if days.first > 0 else", "future if days.first >= 0 else",
         "tests/test_env_weather.py::test_goals_ask_in_words_for_what_is_answered"),
        ('rng.choice(["Yes", "No", city.name, str(self.task.today), rng.randint(0, 40)])',
         "self.task.answer", "test_a_random_player_is_legal_and_poor"),
    ],
    "envs/movie.py": [
        ("key=likely.count", "key=len", "test_search_takes_the_nearest_name"),
        ("[0][:10]]}", "[0]]}", "test_a_person_is_told_in_the_originals_shapes"),
        ("t.film.revenue > t.film.budget", "t.film.revenue < t.film.budget",
         "tests/test_env_movie.py::test_goals_ask_in_words_for_what_is_answered"),
    ],
    "envs/academia.py": [
        ("self.loaded = set()\n        return",
         "self.loaded = {*vars(self).get('loaded', ())}\n        return",
         "test_a_net_must_be_loaded_in_each_episode"),
        ("if node2 not in a.cites:", "if node2 not in a.cites and node1 not in _.cites:",
         "test_a_paper_is_told_in_the_originals_shape"),
        ("best if n > next_n else None", "best if n else None",
         "test_only_is_the_one_most_frequent"),
    ],
    "envs/todo.py": [
        ("super().judge(answer) and (self.projects, self.tasks) == self.task.wanted",
         "super().judge(answer)", "test_judge_wants_the_answer_and_the_state"),
        ("        self.forget(\"update_task\", task_id)\n", "",
         "test_expert_makes_a_change_again_that_was_undone"),
        ("found[-HELD_OUT:] if held_out else found[:-HELD_OUT]", "found",
         "test_test_is_about_other_things_than_train"),
        ('shown(found, "is_completed")}', "shown(found)}", "test_changes_are_told_and_seen"),
    ],
    "envs/parts/grid.py": [
        ('Wrong("#REF!")        # as long', '0.0        # as long',
         "test_formulas_that_refer_to_themselves_show_ref"),
        ("if not re.fullmatch(\"[0-9.]+\", token) or", "if", "test_formulas_run_no_python"),
        ("if is_formula(held) else held for held in kept[n]]",
         "if False else held for held in kept[n]]", "test_formulas_and_notes_follow_their_cells"),
        ("corners[axis + 2] = left[0], left[-1]", "corners[axis + 2] = left[0], left[0]",
         "test_merged_cells_show_the_first_whatever_happens_to_it"),
    ],
    "envs/sheet.py": [
        ("            self.grid = before\n", "            pass\n",
         "test_a_change_that_asks_too_much_is_taken_back"),
        ("bottom = 0                                  #", "pass                #",
         "test_expert_succeeds_after_any_detour[sheet]"),
        ("= sheet_of(self.task), False", "= Grid(self.task.rows), False",
         "test_agentgyms_own_tasks_are_test_and_train_is_ours"),
        ("in [] if self.task in OWN else self.plan:", "in self.plan:",
         "test_expert_makes_any_sheet_of_your_own"),
        ('reward = info["gain"] if GAIN', 'reward = reward if GAIN',
         "test_the_reward_is_the_share_or_on_request_the_gain"),
    ],
    "envs/parts/toolusage.py": [
        ('if cell.get("t") == "s" else value', "if False else value",
         "test_agentgyms_own_tasks_are_test_and_train_is_ours"),
        ('task | told.pop(("tasks", task["content"])) for',
         'told.pop(("tasks", task["content"])) | task for',
         "test_agentgyms_own_tasks_are_played_under_its_ids"),
    ],
    "envs/parts/sheet_tasks.py": [
        ("fits = t.columns[t.column][2] == 2 and 0 <", "fits = 0 <",
         "test_wanted_sheet_is_the_one_that_the_words_mean"),
        ("lambda row: row[t.at] < limit", "lambda row: row[t.at] <= limit",
         "test_wanted_sheet_is_the_one_that_the_words_mean"),
    ],
    "envs/parts/original.py": [
        ('"alfworld": {"world_type": "Text"}', '"alfworld": {"world_type": "Thor"}',
         "test_a_world_is_played_as_recorded"),
        ("True if done is False and won else done", "done", "test_a_world_is_played_as_recorded"),
        ('if item["id"] != self.number:', "if False:",
         "test_a_step_that_fails_is_an_outage_and_never_sent_twice"),
    ],
    "envs/parts/answers.py": [
        ("status in (400, 413, 422)", "status in (413, 422)",
         "test_a_wrong_task_is_the_users_mistake_and_not_tried_again"),
        (" and abs(x) < 1e30", "", "test_answer_makes_an_outage_of_a_wrong_field_of_ours"),
    ],
    "envs/parts/wires.py": [
        ('"status": refusal.status}', '"status": 500}',
         "test_resets_and_steps_answer_in_order_and_each_apart"),
        ('"score": answer["info"]["score"]', '"score": answer["reward"]',
         "test_wires_are_the_original_ones"),
        ("(type(value) is kind or", "(isinstance(value, kind) or",
         "test_malformed_bodies_are_answered_and_touch_nothing"),
        ("room.lstrip()", "room", "test_wires_are_the_original_ones"),
        (" and service.wire.closed", "", "test_wires_are_the_original_ones"),
        ('if key == "id" else "ok"', 'if key != "id" else "ok"',
         "test_wires_are_the_original_ones"),
    ],
    "envs/alfworld.py": [
        ('{"heat": "cool", "cool": "hot"}', "{}",
         "test_step_treatments_need_tool_and_thing_in_hand"),
        ("(o, TREATMENTS[verb][1]) in self.states)", "o in self.where)",
         "test_step_rewards_only_the_fulfilled_task"),
    ],
    "envs/babyai.py": [
        ("engine, seed = self._engine, task_id // 40", "engine, seed = self._engine, task_id",
         "test_step_plays_minigrids_own_world"),
        (" or before == (before := situation(engine))", "",
         "test_step_stops_at_the_first_grid_step_that_changes_nothing"),
        ("near = sorted((6 - j + abs(i - 3), j, i)", "near = sorted((6 - j, j, i)",
         "test_observation_tells_exactly_what_minigrids_image_shows"),
    ],
    "envs/bandit.py": [
        ("self.luck.random() < HIGH_CHANCE", "self.luck.random() > HIGH_CHANCE",
         "test_step_pays_as_announced"),
        ("pairs[task_id // 2 % len(pairs)]", "pairs[task_id % len(pairs)]",
         "test_arms_keep_their_meaning_in_train_and_lose_it_in_reversed"),
    ],
    "envs/web/browser.py": [
        ("and (role_of(x) != \"button\" or x is button)", "",
         "test_browser_sends_forms_as_a_browser_does"),
        ("not any(values_of(field))", "not values_of(field)",
         "test_browser_sends_forms_as_a_browser_does"),
        ("len(elements) + 2 * place[element] + behind", "len(elements) + len(nodes)",
         "test_browser_keeps_ids_and_what_was_typed_until_the_page_changes"),
        ("depth, places[n] = nodes[n].depth, 0", "depth = nodes[n].depth",
         "test_browser_shows_a_window_that_scrolls"),
    ],
    "envs/web/tasks.py": [
        ("               == self.test]", "               is not None]",
         "test_train_and_test_are_disjoint_in_content"),
        ("x[\"query\"] for x in found[:-1]", "x[\"query\"] for x in found[1:]",
         "test_gold_answers_are_those_of_the_pages"),
    ],
    "envs/webarena.py": [
        ("if alone and len(phrase) == 1", "if len(phrase) == 1", "test_string_match"),
        ("any(base in path for", "any(base == path for", "test_url_match"),
        ("good = all(any(included", "good = all(all(included", "test_program_html"),
        ("return texts <= self.read and", "return",
         "test_no_task_is_solved_by_stopping_and_every_answer_can_be_read"),
        ("text.endswith((\"[0]\", \"[1]\"))", "text.endswith(\"[0]\")",
         "test_read_action_takes_what_the_original_takes"),
    ],
    "envs/web/pages.py": [
        ("return escape(value)", "return value",
         "test_markup_in_every_text_field_is_shown_as_text"),
        ("if not first.rowcount:", "if first.rowcount is None:",
         "test_an_order_takes_what_is_in_the_cart"),
        ("OFFSET {per_page * (page - 1)}", "OFFSET {(per_page - 1) * (page - 1)}",
         "test_pages_of_a_list_hold_every_row_once"),
        ("return round(100 * float(", "return int(float(",
         "test_what_the_administration_changes_the_shop_shows"),
    ],
    "envs/web/sites.py": [
        ("max_page_count = {pages + GROWTH}", "max_page_count = {pages + 9 * GROWTH}",
         "test_a_form_posted_a_thousand_times_stays_bounded"),
        ('if parts.scheme != "http" or ', "if ", "test_only_the_sites_exist"),
        ("> LONGEST_FORM:\n                raise", "> 9 * LONGEST_FORM:\n                raise",
         "test_a_form_that_is_wrong_or_too_large_changes_nothing"),
        ('random.Random(f"webarena {seed}")', 'random.Random("webarena")',
         "test_a_seed_makes_the_sites_and_no_session_sees_another"),
        ('self.headers.get("Origin") != f"http://{host}"', 'self.headers.get("Origin") == "null"',
         "test_the_server_answers_a_persons_browser_alone"),
    ],
    "envs/web/shop.py": [
        ("max(stock - (SELECT", "max(stock - 0 * (SELECT",
         "test_an_order_takes_what_is_in_the_cart"),
        ("product_id = ? AND status = 'Approved' ORDER", "product_id = ? ORDER",
         "test_what_the_administration_changes_the_shop_shows"),
    ],
    "envs/web/admin.py": [
        ("product_id WHERE status != 'Canceled'", "product_id",
         "test_bestsellers_and_sales_by_month_are_sums_over_the_lines"),
    ],
    "envs/web/forum.py": [
        ("WHEN :value THEN 0", "WHEN :value THEN :value",
         "test_a_vote_counts_once_and_can_be_taken_back"),
    ],
    "envs/web/code.py": [
        ("FROM issue WHERE project_id = project.id)", "FROM issue)",
         "test_issues_are_numbered_by_project_and_closed_and_opened"),
    ],
    "envs/web/maps.py": [
        ("INSERT INTO mode VALUES ('car', 120, 700)", "INSERT INTO mode VALUES ('car', 100, 700)",
         "test_a_way_is_measured_along_the_streets"),
    ],
    "envs/parts/databases.py": [
        ('("whose {c} is below {v}"', '("whose {c} is above {v} "',
         "test_conditions_words_say_the_side"),
        ("return len(rows) == len(rows_of(where=()))", "return True",
         "test_counts_by_a_column_are_asked_where_no_value_is_without_a_row"),
        ("if (told, column) not in known}", "}",
         "test_words_of_name_all_that_the_answer_depends_on"),
    ],
    "envs/bird.py": [
        ("return unseen or (zlib.crc32(text.encode()) % 10 == 0) == test", "return True",
         "test_train_and_test_share_no_query_and_hold_what_agentgym_holds"),
        ('self.tries_left -= kind != "no SQL"', "self.tries_left -= 1",
         "test_step_leaves_the_try_to_what_is_no_statement"),
        ("round(x, 6) if", "round(x, 1) if", "test_step_rewards_the_set_of_rows"),
        ("if action in MAY and name", "if name", "test_step_survives_sql_that_means_ill"),
    ],
    "envs/frozenlake.py": [
        ("slide(cell, ways[turn - 1])", "slide(cell, ways[turn - 2])",
         "test_outcomes_are_those_of_gymnasium"),
        ('done = self.lake[self.cell] != "_" or self.actions_left == 0',
         'done = self.lake[self.cell] != "_"', "test_step_ends_with_the_last_action"),
    ],
    "envs/maze.py": [
        ("if self.turns > MAX_MOVES", "if self.turns >= MAX_MOVES",
         "test_step_succeeds_on_the_fiftieth_move"),
        ("if moved(self.grid, self.cell, action) == self.cell]",
         "if moved(self.grid, self.cell, action) != self.cell]",
         "test_look_tells_the_walls_of_the_double_t"),
    ],
    "envs/sciworld.py": [
        ("float(self.score - before)", "float(self.score)",
         "test_reward_counts_from_the_score_of_the_start_room"),
        ("train += range(start, start + 2 * quarter)", "train += range(start, start + 3 * quarter)",
         "test_split_is_the_engines_for_every_task"),
    ],
    "envs/searchqa.py": [
        ("done = success or not self.retry", "done = success",
         "test_act_ends_at_the_first_answer_unless_it_may_try_again"),
        ("if 0 <= start < first and end > 0", "if 0 <= start and end > 0",
         "test_first_tag_is_what_the_originals_expression_finds"),
        (r'r"\b(a|an|the)\b"', r'r"(a|an|the)"', "test_normalised_as_squad_does"),
    ],
    "envs/parts/retrieval.py": [
        ("bm25(pages, 2.0, 1.0)", "bm25(pages)", "test_index_finds_what_bm25_ranks_first"),
        ("for item in result[:TOP]]", "for item in result]",
         "test_remote_speaks_as_search_r1s_clients_do"),
    ],
    "envs/searchqa_small.py": [
        ("if word in self.passages][:1]", "if word in self.passages][-1:]",
         "test_small_search_finds_the_first_name"),
    ],
    "envs/parts/knowledge.py": [
        ("names = [rng.choice(part) for part in thing.parts]",
         "names = rng.sample(thing.parts[0] + thing.parts[1], 2)",
         "test_ask_triviaqa_describes_one_thing_only"),
        ("(values[0] < values[1]) == late", "(values[0] < values[1]) != late",
         "test_ask_comparison_is_answered_by_the_greater_or_the_first"),
        ("rng.randrange(began(maker) + 24, last)", "rng.randrange(began(maker) + 14, last)",
         "test_facts_fit_together"),
        ("((value.name, *value.also, bare))", "((*value.also, value.name))",
         "test_golds_of_takes_a_number_without_its_unit_and_a_name_without_its_sort"),
    ],
    "envs/sokoban.py": [
        ("beyond in floor and beyond not in boxes", "beyond in floor", "test_play_moves_one_step"),
        ("len(self.boxes & self.targets) - before - 0.1", "len(self.boxes & self.targets) - 0.1",
         "test_step_rewards_a_push_on_and_off_a_target_and_the_room"),
    ],
    "envs/textcraft.py": [
        ("things - {self.goal, *self.world.classes}", "things - {*self.world.classes}",
         "test_lesson_of_other_goals_never_sets_out_for_the_tasks_own"),
        ('"craft {items} using {ingredients}":', '"craft {items} with {ingredients}":',
         "test_tools_can_say_all_that_the_expert_does"),
        ("self.inventory[i] -= n", "self.inventory[i] -= 0",
         "test_step_reckons_with_what_the_recipe_makes_not_with_the_number_typed"),
        ("all(n == m and i in", "all(n >= m and i in", "test_step_answers_every_kind_of_action"),
    ],
    "envs/parts/products.py": [
        ("dict.fromkeys(word[:LONGEST] for", "dict.fromkeys(word for",
         "test_search_reads_the_first_feature_and_forty_letters_of_a_word"),
        ("joined = phrases[0].startswith((\"in \", \"with \")) and", "joined =",
         "test_make_goal_says_its_wishes_as_one_says_them"),
    ],
    "envs/parts/shop_rules.py": [
        ("for text in texts] * bool(both)", "for text in texts] * 0", "test_alike_by_hand"),
        ("len(product.asin) <= 10", "len(product.asin) <= 11",
         "test_read_shop_reads_prices_options_and_texts"),
        ("row = (row + hits) | (row - hits)", "row = row - hits",
         "test_likeness_counts_the_longest_common_subsequence"),
    ],
    "envs/webshop.py": [
        ('"B0[A-Z]{4}|[A-Z]{4}")', '"[A-Z]{4}")',
         "test_names_are_one_and_the_same_token_wherever_they_are_copied"),
        ("text=escape(text), group=escape(group)", "text=text, group=group",
         "test_html_never_makes_markup_of_a_product"),
        ("sorted(values, key=lambda value: value != wish)", "values",
         "test_choices_takes_the_option_in_the_wishs_own_words"),
    ],
    "envs/wordle.py": [
        ("            left.remove(letter)\n", "", "test_feedback_on_cases_worked_by_hand"),
        ("success or not self.tries_left", "success or self.tries_left < 0",
         "test_step_ends_the_game_with_the_sixth_try"),
    ],
    "run.py": [
        ('every = choose_tasks(world.module, "train", 0, own)',
         'every = choose_tasks(world.module, "test", 0, own)',
         "test_both_splits_keeps_to_what_a_server_knows"),
        ("**preset(given) | given)", "**given | preset(given))",
         "test_parse_flags_takes_a_preset_between_defaults_and_flags"),
        ('sum(line["seconds"] for line in self.history)',
         'sum(line["seconds"] for line in self.history[-1:])',
         "test_a_resumed_runs_seconds_of_rl_are_those_of_both_parts"),
        ("temperature=cfg.temperature,", "temperature=1.0,",
         "test_run_measures_a_model"),
    ],
    "chat.py": [
        ('said("user", text) + [assistant(self.manner.agreed)]',
         'said("system", text) + [assistant(self.manner.agreed)]',
         "test_episode_begins_as_agentgyms_conversation"),
        ("tokenizer.eos_token_id, *stop_ids} - {None}", "tokenizer.eos_token_id} - {None}",
         "test_chat_finds_the_stop_tokens"),
        ('self.special if m["role"] in ("user", "tool") else self.special_in_reply', "self.special",
         "test_rules_name_the_tokens_that_a_reply_should_hold"),
        ("said(role, broken(self.special, text))", "said(role, text)",
         "test_chat_takes_a_quoted_special_token_for_ordinary_text"),
        ("self.opened + broken(self.special_in_reply, text), {}",
         "broken(self.special_in_reply, text), {}",
         "test_template_shows_what_a_chat_server_renders"),
        ('dict(role="tool", content=text,', 'dict(role="user", content=text,',
         "test_a_call_is_read_back_and_its_result_comes_in_the_tools_role"),
        ('return words.partition("<think>")[2].strip("\\n"), None',
         'return words.partition("<think>")[2].strip("\\n"), ""',
         "test_a_reply_cut_within_its_thoughts_is_an_empty_action"),
        (r're.search(r"</think>\s*<answer>', 're.search(r"<answer>',
         "test_format_read_gives_the_action_or_a_complaint"),
        ("self.write if turn else self.first + self.write", "self.first + self.write",
         "tests/test_rollout.py::test_format_compose_is_read_back_to_the_same_action"),
    ],
    "envs/parts/tool_calls.py": [
        ("form)} != {*arguments}", "form)} - {*arguments}",
         "test_a_call_that_cannot_be_made_is_complained_about"),
        ("json.dumps(call, ensure_ascii=False).encode()", "json.dumps(call, ensure_ascii=False)",
         "test_a_call_that_cannot_be_made_is_complained_about"),
    ],
    "recipes/eval_api.py": [
        ("seed=int(2**31 * episode.uniforms[0])", "seed=episode.trajectory.key[0]",
         "test_speak_asks_for_what_the_flags_say"),
        ("backoff_factor=1)", "backoff_factor=2)",
         "test_a_server_that_stays_in_trouble_ends_the_run"),
        ("if silent > SILENCE:", "if silent < SILENCE:", "test_a_silent_api_is_told_of"),
        ("daemon=True).start()", "daemon=False).start()", "test_ctrl_c_waits_for_no_answer"),
        ("if len(calls) == 1 and type(", "if calls and type(", "test_read_completion"),
    ],
    "envs/parts/players.py": [
        ("rates = [(len(own) / len(tasks),", "rates = [(1 / len(ids),", "test_player_rate_by_hand"),
        ("for v in values) / (n - 1) / n)", "for v in values) / n / n)",
         "test_builtin_rate_is_played_elsewhere"),
        ("module.exact_success(t, player, horizon)",
         "module.exact_success(t, player, module.HORIZON)",
         "test_builtin_rate_is_exact_where_the_environment_can_be_solved"),
    ],
    "envs/parts/movie_words.py": [
        ('("DE", "de", "German"), ("NL", "nl", "Dutch")',
         '("NL", "nl", "Dutch"), ("DE", "de", "German")',
         "tests/test_env_movie.py::test_goals_ask_in_words_for_what_is_answered"),
    ],
}


# ---- the list -----------------------------------------------------------------------------------

def entries(only=""):
    """[(file, text, wrong, test), ...] of all files, or of those whose path ends in `only`; without
    those that only the real chat templates show, if trl, which brings them, is not installed."""
    found = [(file, text, wrong, located(test)) for file, faults in FAULTS.items()
             if f"/{file}".endswith(only and f"/{only}") for text, wrong, test in faults]
    return [entry for entry in found if find_spec("trl") or "test_chat.py" not in entry[-1]]


@functools.cache
def located(test):
    """tests/test_x.py::test for a test without its file, if one file has a test of this name."""
    homes = [path for path in ROOT.glob("tests/test_*.py")
             if "::" not in test and f"\ndef {test.partition('[')[0]}(" in path.read_text()]
    return f"tests/{homes[0].name}::{test}" if len(homes) == 1 else test


def trouble(file, text, wrong, test):
    """Why this entry cannot be tried, in words; "" if it can."""
    found = (ROOT / file).read_text().count(text)
    if found != 1:
        return (f"its text occurs {found} times in {file}, expected once: the line has changed, "
                f"so write the entry anew: {text!r}")
    if text == wrong:
        return "the wrong form is the right one"
    path, _, name = test.partition("::")
    if not name or f"def {name.partition('[')[0]}(" not in (ROOT / path).read_text():
        return f"there is no test {test}, or in several files"
    return ""


# ---- one fault, in a process of its own ---------------------------------------------------------

def copy_with(folder, file="", text="", wrong=""):
    """A copy of this checkout in `folder`, with the fault if one is given."""
    shutil.copytree(ROOT, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(
        ".*", "runs", "shared", "*.png", "*.svg"))      # compiled files go along: they save seconds
    if file:
        place = Path(folder, file)
        place.write_text(place.read_text().replace(text, wrong))
        Path(cache_from_source(str(place))).unlink(missing_ok=True)
    os.chdir(folder)
    sys.path[:] = [folder] + [p for p in sys.path if p and ROOT not in (Path(p), Path(p).parent)]
    sys.dont_write_bytecode = True


class Watch:
    """A pytest plugin: how each test ended."""

    def __init__(self):
        self.ran, self.failures = 0, []      # failures: (name of the exception, first line)

    def pytest_runtest_makereport(self, item, call):
        import pytest
        self.ran += call.when == "call"
        if call.excinfo and not call.excinfo.errisinstance(pytest.skip.Exception):
            said = AssertionError, pytest.fail.Exception       # the latter: pytest.raises' own
            within = "\nAssertionError" in str(call.excinfo.value)      # in another process
            name = ("AssertionError" if within or call.excinfo.errisinstance(said)
                    else call.excinfo.typename)
            self.failures.append((name, str(call.excinfo.value).partition("\n")[0]))


def tested(tests):
    """Run tests in this process -> ("noticed" | "passed" | "crashed" | "no test", details)."""
    import pytest
    watch = Watch()
    pytest.main([*tests, "-o", "addopts=", "-q", "-p", "no:cacheprovider", "--tb=short"], [watch])
    if any(name == "AssertionError" for name, _ in watch.failures):
        return "noticed", next(line for name, line in watch.failures if name == "AssertionError")
    if watch.failures:
        return "crashed", ": ".join(watch.failures[0])
    return ("passed", "") if watch.ran else ("no test", "pytest ran no test: see its output")


def in_a_process(tests, *fault):
    """Fork; there copy the code with the fault and run the tests -> (pid, the folder it used). What
    `tested` returns is left in result.json, what is printed in output.txt."""
    folder = tempfile.mkdtemp(prefix="wrong-")
    pid = os.fork()
    if pid:
        return pid, folder
    signal.alarm(SECONDS)                    # ends a process that hangs
    status = 1
    try:
        output = os.open(f"{folder}/output.txt", os.O_CREAT | os.O_WRONLY)
        os.dup2(output, 1)
        os.dup2(output, 2)
        copy_with(f"{folder}/copy", *fault)
        with open(f"{folder}/result.json", "w") as file:
            json.dump(tested(tests), file)
        status = 0
    except BaseException:
        import traceback
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(status)


def results(jobs, processes):
    """jobs: (label, wanted, tests, *fault) each -> (label, wanted, outcome, details, output), as
    they end."""
    waiting, running = list(reversed(jobs)), {}
    while waiting or running:
        while waiting and len(running) < processes:
            label, wanted, tests, *fault = waiting.pop()
            pid, folder = in_a_process(tests, *fault)
            running[pid] = label, wanted, folder
        pid, status = os.wait()
        label, wanted, folder = running.pop(pid)
        output = Path(folder, "output.txt").read_text(errors="replace")
        outcome = "hung" if os.WIFSIGNALED(status) else "crashed"
        details = (output.strip().splitlines() or [""])[-1]
        with contextlib.suppress(ValueError, OSError):       # an ended process left none
            outcome, details = json.loads(Path(folder, "result.json").read_text())
        shutil.rmtree(folder, ignore_errors=True)
        yield label, wanted, outcome, details, output


# ---- all of them --------------------------------------------------------------------------------

def try_all(chosen, processes=2, check=True):
    """Try every entry, print a line each -> how many went wrong. check: first see that the named
    tests pass without a fault."""
    import numpy  # noqa: F401  once, here, and not in each of the processes
    import pytest  # noqa: F401
    import torch  # noqa: F401
    import transformers  # noqa: F401
    from transformers import (AutoModelForCausalLM, LlamaConfig,  # noqa: F401
                              PreTrainedTokenizerFast, Qwen2Config, Qwen3Config)
    bad = [f"NO ENTRY   {entry[0]}: {why}" for entry in chosen if (why := trouble(*entry))]
    good = [entry for entry in chosen if not trouble(*entry)]
    jobs = []
    for path in sorted({test.partition("::")[0] for *_, test in good}) * check:
        tests = sorted({test for *_, test in good if test.startswith(f"{path}::")})
        jobs.append((f"clean {path}, {len(tests)} tests without a fault", "passed", tests))
    for file, text, wrong, test in good:
        label = f"test  {file}: {text.strip()!r} -> {wrong.strip()!r} | {test}"
        jobs.append((label, "noticed", [test], file, text, wrong))
    for label, wanted, outcome, details, output in results(jobs, processes):
        if outcome == wanted:
            print(f"{outcome:10} {label}", flush=True)
        else:
            bad.append(f"{outcome.upper():10} {label}")
            print("\n           ".join([bad[-1], details, *output.splitlines()[-15:]]), flush=True)
    print(f"{len(good)} faults tried; {len(bad)} lines want attention" + ":" * bool(bad))
    for line in bad:
        print("  " + line)
    return len(bad)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="a file, such as train.py or envs/maze.py")
    parser.add_argument("--sample", type=int, default=0, help="so many of them, without the check")
    parser.add_argument("--seed", type=int, default=0, help="chooses the sample")
    parser.add_argument("-j", type=int, default=2, help="processes")
    flags = parser.parse_args()
    chosen = entries(flags.only)
    if flags.sample:
        chosen = random.Random(flags.seed).sample(chosen, flags.sample)
    if not chosen:
        sys.exit(f"--only {flags.only}: no faults of it; there are {', '.join(FAULTS)}")
    sys.exit(try_all(chosen, flags.j, check=not flags.sample) > 0)


if __name__ == "__main__":
    main()
