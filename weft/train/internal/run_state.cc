// What a checkpoint has of a run: tensors in parts, and values as texts by name. Checkpoints of
// older versions lack some of the values, as each_saved() says.
//
// The best checkpoint has two marks. best_ is the best evaluation, and kept_ the best checkpoint
// that is complete. They differ while a new best one is written, and after its save has failed:
//
//   best_ = N ── save N, which removes neither N nor kept_ ── complete ── kept_ = N ── best.json
//
// best.json is written last. So it names a checkpoint that is complete, and no save of this run
// removes that one before another is complete. Rank 0 alone removes checkpoints, so only its kept_
// counts.
#include "weft/train/internal/run_state.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <filesystem>
#include <type_traits>

#include "weft/base/error.h"
#include "weft/base/log.h"
#include "weft/comm/texts.h"
#include "weft/elastic/entry.h"
#include "weft/elastic/recovery.h"
#include "weft/rank_link/messages.h"
#include "weft/train/internal/room.h"
#include "weft/train/internal/workers.h"

namespace weft::train::internal {
namespace {

// Texts of the state: a callback has asked for it.
constexpr const char* kAskedStop = "asked_stop";
constexpr const char* kAskedSave = "asked_save";

// Calls visit(name, value, since) for each value of a run. A checkpoint that lacks `since` is of an
// older version, and lacks this value, too. Without `since`, each checkpoint has the value.
template <class Visit>
void each_saved(BatchDivision& o, Visit&& visit) {
  visit("batch", o.global);
  visit("replicas", o.replicas, "replicas");
  visit("pass", o.pass, "replicas");
  visit("reference", o.reference, "replicas");
  visit("first_batch", o.first_global, "first_replicas");
  visit("first_replicas", o.first_replicas, "first_replicas");
  visit("first_ranks", o.first_ranks, "first_ranks");
}
template <class Visit>
void each_saved(Progressed& o, Visit&& visit) {
  visit("step", o.step);
  visit("epoch", o.sampler.epoch);
  visit("position", o.sampler.position);
  visit("epoch_loss", o.epoch_loss);
  visit("epoch_samples", o.epoch_samples, "epoch_samples");
  visit("seed", o.seed);
  each_saved(o.batch, visit);
  visit("asked_batch", o.asked_batch, "asked_batch");
  visit("noise", o.noise.noise, "noise");
  visit("signal", o.noise.signal, "noise");
  visit("passes", o.passes, "noise");
  visit("best_step", o.best.step, "best_step");
  visit("best_value", o.best.value, "best_step");
  visit("best_since", o.best.since, "best_step");
  visit("best_metric", o.best.metric, "best_metric");
  visit("best_is", o.best.is, "best_is");
  visit("evaluated_step", o.evaluated_step, "evaluated_step");
  visit("samples", o.samples, "samples");
  visit("skipped_steps", o.left_out.skipped, "skipped_steps");
  visit("dropped_steps", o.left_out.dropped, "skipped_steps");
}

template <class T>
T number(const checkpoint::Reader& saved, const std::string& name) {
  const auto found = saved.state().find(name);
  const auto value =
      found == saved.state().end() ? std::nullopt : elastic::value_of<T>(found->second);
  if (!value)
    throw Error(Errc::kCorrupt, "the checkpoint of step " + std::to_string(saved.step()) +
                                    " has no number \"" + name + "\"");
  return *value;
}

// Values that the checkpoint lacks stay.
template <class Struct>
void read_saved(const checkpoint::Reader& saved, Struct& o) {
  each_saved(o, [&](const char* name, auto& value, const char* since = nullptr) {
    if (since != nullptr && !saved.state().contains(since)) return;
    if constexpr (std::is_same_v<decltype(value), std::string&>) {
      value = saved.state().at(name);
    } else {
      value = number<std::remove_reference_t<decltype(value)>>(saved, name);
    }
  });
}

void require_same(const std::string& what, std::int64_t then, std::int64_t now) {
  WEFT_REQUIRE(then == now, "cannot resume: " + what + " was " + std::to_string(then) +
                                " when the checkpoint was made and is " + std::to_string(now) +
                                " now");
}

std::int64_t bytes_of(const checkpoint::Parts& parts) {
  std::int64_t bytes = 0;
  for (const auto& [part, slices] : parts) {
    for (const auto& slice : slices) bytes += static_cast<std::int64_t>(slice.tensor.nbytes());
  }
  return bytes;
}

// Limit of the memory for copies. 0: no copies, so saves are synchronous.
std::int64_t staging_bytes(const Group& world, bool async, std::int64_t copy_bytes) {
  if (!async) return 0;
  const std::string why = too_small(world, copy_bytes, "copies of the state", 0.5);
  if (why.empty()) return INT64_MAX;
  if (world.rank() == 0) {
    log_warn(
        "training will wait while checkpoints are written, since a machine has little memory: " +
        why + "; train.checkpoint_async = false does the same without this warning");
  }
  return 0;
}

// The checkpoint that best.json names. It is an older one than the best if the save of that failed,
// or the run ended before it was complete.
std::int64_t kept_of(const RunSaver::Options& options) {
  if (options.folder.empty()) return options.best.step;
  const std::int64_t named =
      named_best(std::filesystem::path(options.folder).parent_path().string());
  return named >= 0 ? named : options.best.step;
}

}  // namespace

RunSaver::RunSaver(const Group& world, const checkpoint::Parts& now, const Options& options)
    : world_(world),
      folder_(comm::broadcast_text(world, options.folder)),
      keep_(options.keep),
      best_(options.best),
      kept_(kept_of(options)),
      damaged_(options.damaged),
      saver_(world, staging_bytes(world, options.async, bytes_of(now))) {
  saver_.reserve({.parts = now, .state = {}});
}

void check_savable(const Group& world, const checkpoint::Parts& parts) {
  std::string mine;
  try {
    checkpoint::check_parts(parts);
  } catch (const Error& error) {
    mine = error.message();
  }
  for (const std::string& why : comm::all_gather_texts(world, mine)) {
    if (!why.empty()) throw Error(Errc::kInvalidArgument, why);
  }
}

checkpoint::Shards shards_of(checkpoint::Parts parts, Progressed progressed) {
  checkpoint::Shards shards;
  shards.step = progressed.step;
  shards.parts = std::move(parts);
  each_saved(progressed, [&](const char* name, auto& value, const char* = nullptr) {
    if constexpr (std::is_same_v<decltype(value), std::string&>) {
      shards.state[name] = value;
    } else {
      shards.state[name] = elastic::text_of(value);
    }
  });
  if (progressed.asked.stop) shards.state[kAskedStop] = "1";
  if (progressed.asked.save) shards.state[kAskedSave] = "1";
  return shards;
}

// Until the new best checkpoint is complete, the one before stays.
void RunSaver::save(const checkpoint::Shards& shards, const BestMark& best) {
  report(saver_.wait());
  // After report(), which may have changed kept_: this save removes what was kept before.
  if (best.step == shards.step) best_ = best;
  std::erase(damaged_, shards.step);  // the new one takes its place
  report(saver_.save(folder_, shards,
                     {.keep = keep_, .also = {best_.step, kept_}, .damaged = damaged_}));
}

void RunSaver::poll() { report(saver_.poll()); }

void RunSaver::settle() {
  const auto result = saver_.wait();
  note(result);
  if (loss_) throw Error(*loss_);
  report(result);
}

void RunSaver::finish(bool ends) {
  const auto result = saver_.wait();
  if (result && result->error) {
    // After the loss of a rank, the others go on from a state before, and save again.
    if (ends && !elastic::is_loss(*result->error)) rank_link::tell_launcher(rank_link::Unsaved{});
    throw *result->error;
  }
  report(result);
}

void RunSaver::note(const std::optional<checkpoint::AsyncSaver::Result>& result) {
  if (!result) return;
  const bool is_loss = result->error && elastic::is_loss(*result->error);
  loss_ = is_loss ? result->error : std::nullopt;
}

void RunSaver::report(const std::optional<checkpoint::AsyncSaver::Result>& result) {
  note(result);
  if (!result || world_.rank() != 0) return;
  if (result->error) {
    log_error(result->error->message() + "; training goes on, and older checkpoints are untouched");
    return;
  }
  rank_link::tell_launcher(rank_link::CheckpointSaved{result->folder});
  if (result->step == best_.step) {
    kept_ = best_.step;
    write_best(std::filesystem::path(folder_).parent_path().string(), best_, result->folder);
  }
  const auto ms = [](std::chrono::nanoseconds time) {
    return std::chrono::duration<double, std::milli>(time).count();
  };
  log_debug("checkpoint", {{"folder", result->folder},
                           {"stall_ms", ms(result->stall)},
                           {"whole_ms", ms(result->whole)}});
}

BatchDivision Saved::batch() const {
  BatchDivision batch;
  read_saved(reader_, batch);
  return batch;
}

std::string Saved::asked_batch() const {
  const auto found = reader_.state().find("asked_batch");
  return found == reader_.state().end() ? "" : found->second;
}

Progressed Saved::progress(std::uint64_t seed, std::int64_t batch, std::int64_t samples) const {
  Progressed progressed;
  progressed.samples = samples;
  read_saved(reader_, progressed);
  if (!reader_.state().contains("epoch_samples"))
    progressed.epoch_samples = static_cast<double>(progressed.sampler.position);
  if (!reader_.state().contains("evaluated_step")) progressed.evaluated_step = progressed.step;
  progressed.asked = {reader_.state().contains(kAskedStop), reader_.state().contains(kAskedSave)};
  require_same("train.seed", static_cast<std::int64_t>(progressed.seed),
               static_cast<std::int64_t>(seed));
  require_same("the global batch", progressed.batch.global, batch);
  if (progressed.samples != samples && progressed.sampler.position > 0) {
    throw Error(Errc::kBadConfig,
                "cannot resume in the middle of epoch " +
                    std::to_string(progressed.sampler.epoch + 1) + ": the training data had " +
                    std::to_string(progressed.samples) +
                    " samples when the checkpoint was made and has " + std::to_string(samples) +
                    " now; give the same data, or start a new run from the weights of this one "
                    "(load_weights)");
  }
  return progressed;
}

void Saved::restore(parallel::ParallelModel& model, const Group& world, Workers* workers) const {
  bool has_rule = true;
  try {
    if (workers != nullptr) {
      has_rule = workers->restore(reader_);
    } else {
      model.load_shards(reader_);
    }
  } catch (const Error& error) {
    if (error.code() != Errc::kInvalidArgument) throw;
    throw Error(
        Errc::kInvalidArgument,
        "cannot resume, since the checkpoint is of another model or optimizer: " + error.message());
  }
  if (!has_rule && world.rank() == 0) {
    log_warn("the strategy begins anew from these weights: the checkpoint has no state of it");
  }
  if (workers == nullptr && !model.load_codec(reader_) && world.rank() == 0) {
    log_warn("the codec starts without state: the checkpoint has none for this codec and mesh");
  }
}

std::optional<Saved> load_latest(const Group& world, const std::string& folder) {
  const auto latest = checkpoint::latest(comm::broadcast_text(world, folder), world);
  if (world.rank() == 0) {
    for (const auto& line : latest.damaged) log_warn("passing over a damaged checkpoint: " + line);
  }
  if (!latest.folder && !latest.damaged.empty()) {
    throw Error(Errc::kCorrupt, "cannot resume: all checkpoints of the run are damaged (" +
                                    std::to_string(latest.damaged.size()) +
                                    "); the newest: " + latest.damaged.front() +
                                    "; start a new run, or put back a copy of a checkpoint");
  }
  if (!latest.folder) return std::nullopt;
  std::optional<Saved> saved;
  comm::together(world,
                 [&] { saved.emplace(checkpoint::Reader(*latest.folder), latest.damaged_steps); });
  return saved;
}

}  // namespace weft::train::internal
