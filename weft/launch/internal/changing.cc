// How the supervisor changes the ranks of a running job: replaces lost ones, goes on without them,
// adds and removes some. decide() chooses; this executes.
#include <signal.h>

#include <cstdio>
#include <cstdlib>
#include <utility>

#include "weft/base/error.h"
#include "weft/base/text/words.h"
#include "weft/launch/internal/supervisor.h"

namespace weft::launch::internal {
namespace {

// The code of the error by which a rank ended; nullopt: of none.
std::optional<Errc> error_of(const RankEnd& end) {
  if (end.cause && end.cause->code) return end.cause->code;
  const bool is_unavailable =
      !end.status.signaled && end.status.value == exit_code(Errc::kUnavailable);
  return is_unavailable ? std::optional(Errc::kUnavailable) : std::nullopt;
}

}  // namespace

std::string Supervisor::count_of_replacements() const {
  if (policy_.max_replacements == kNoLimit || policy_.max_replacements == 0) return "";
  return " (" + std::to_string(situation_.replacements) + " of " +
         std::to_string(policy_.max_replacements) + ")";
}

// nullopt: the machine has no process, memory or descriptor for it now. The rank is then tried
// again.
std::optional<Supervisor::Rank> Supervisor::try_to_start(int local, bool replaces) {
  std::error_code ignored;
  std::filesystem::remove(error_file_of(local), ignored);
  try {
    Rank started = start_rank(local, replaces);
    situation_.failed_starts = 0;
    return started;
  } catch (const std::exception& error) {
    if (code_of(error) != Errc::kUnavailable) throw;
    situation_.last_end = std::chrono::steady_clock::now();
    if (++situation_.failed_starts == 1)
      note("rank " + std::to_string(job_.rank(local)) + " cannot be started now: " +
           describe(error) + "; it is tried again, and this is said once");
    return std::nullopt;
  }
}

void Supervisor::replace(int local) {
  const auto at = static_cast<std::size_t>(local);
  const std::string who = spares_.has_ready() ? "a spare" : "a new process";
  store_process_->tell_coming(job_.rank(local));
  auto started = try_to_start(local);
  if (!started) return;
  ++situation_.replacements;
  note_lost(local, who + " replaces it" + count_of_replacements());
  ranks_[at] = std::move(*started);
  situation_.ranks[at].reset();
  situation_.joining.insert(local);
}

// Starts an additional rank in a free place.
void Supervisor::grow(int local) {
  const auto at = static_cast<std::size_t>(local);
  const bool is_new = at == ranks_.size();
  if (is_new) set_places(job_, options_, local + 1);
  if (is_new) positions_.set_ranks(local + 1);
  auto started = try_to_start(local);
  if (!started) {
    if (is_new) set_places(job_, options_, local);
    if (is_new) positions_.set_ranks(local);
    return;
  }
  if (is_new) {
    situation_.ranks.emplace_back(RankEnd{});
    ranks_.push_back(std::move(*started));
  } else {
    if (situation_.ranks[at]->let_go && !situation_.requested) ++situation_.replacements;
    ranks_[at] = std::move(*started);
  }
  situation_.ranks[at].reset();
  situation_.growing.insert(local);
  situation_.announced = 0;
  if (gone_.erase(local) > 0) store_process_->tell_back(job_.rank(local));
}

void Supervisor::announce(int ranks) {
  situation_.announced = ranks;
  std::string text = std::to_string(ranks);
  for (const int local : situation_.waiting) text += " " + std::to_string(job_.rank(local));
  for (Rank& rank : ranks_) rank.link.tell("ranks", text);
}

void Supervisor::let_go(int local) {
  situation_.ranks[static_cast<std::size_t>(local)]->let_go = true;
  note_lost(local, "the others go on without it");
}

// By SIGKILL: it waits for the others, and has nothing to lose.
void Supervisor::dismiss(int local) {
  hear(local);  // it may just have joined
  const bool has_joined = !situation_.joining.contains(local) &&
                          !situation_.growing.contains(local) &&
                          !situation_.waiting.contains(local);
  if (has_joined) return;
  situation_.dismissed.insert(local);
  note("rank " + std::to_string(job_.rank(local)) +
       " is ended: the others have finished before it had joined them");
  ranks_[static_cast<std::size_t>(local)].process.signal(SIGKILL);
}

void Supervisor::note_lost(int local, const std::string& consequence) const {
  const RankEnd& end = *situation_.ranks[static_cast<std::size_t>(local)];
  note("rank " + std::to_string(job_.rank(local)) + " is lost: " + end.status.describe() +
       (end.cause ? ": " + end.cause->message : "") + "; " + consequence);
}

// Tells the others which lost ranks they need not wait for.
void Supervisor::tell_gone() {
  for (std::size_t i = 0; i < situation_.ranks.size(); ++i) {
    if (situation_.ranks[i] && !situation_.ranks[i]->status.ok() &&
        gone_.insert(static_cast<int>(i)).second)
      store_process_->tell_gone(job_.rank(static_cast<int>(i)));
  }
}

std::string Supervisor::not_usable(int ranks, const agent::UsableRanks& usable) {
  if (usable.replicas > 0 && ranks / usable.multiple > usable.replicas) {
    return std::to_string(ranks) + " ranks: train.batch has " + std::to_string(usable.replicas) +
           " samples, of which each replica takes one at least; at most " +
           std::to_string(usable.most(ranks)) + " ranks, or a larger train.batch";
  }
  return std::to_string(ranks) + " ranks: the mesh of this job uses " + usable.describe() +
         (usable.shards > 0 ? ", which divide its micro-shards" : "");
}

// Answers `weft scale` when the job has the wanted number of ranks.
std::optional<std::string> Supervisor::answer(const std::string& request) {
  if (request == "run") return run_folder_.empty() ? "none" : run_folder_;
  if (request == "servers") return job_.servers == 0 ? "none" : servers_.describe();
  if (request == "stop" || request.starts_with("stop ")) return answer_stop(request);
  int ranks = 0;
  if (std::sscanf(request.c_str(), "scale %d", &ranks) != 1 || ranks < 1)
    return "this launcher does not know the request \"" + request + "\"";
  if (following_) return answer_by_plan(ranks);
  if (policy_.max_ranks == 0)
    return "the number of ranks of this job is fixed; start it with -n MIN:MAX, "
           "--max-replacements or --min-ranks, on one node";
  const int least = least_ranks();
  if (ranks < least || ranks > policy_.max_ranks)
    return counted(ranks, "rank") + ": this job may have " + std::to_string(least) + " to " +
           std::to_string(policy_.max_ranks);
  if (!situation_.usable.has(ranks)) return not_usable(ranks, situation_.usable);
  if (!situation_.trained || situation_.stop_sent) return "the job does not train yet, or it ends";
  if (size_ == ranks) {
    situation_.wanted = ranks;
    situation_.requested = false;
    return "ok";
  }
  want_ranks(ranks, "");
  if (situation_.never_joined < kMostNeverJoined) return std::nullopt;
  situation_.wanted = size_;
  situation_.requested = false;
  return "the job keeps " + std::to_string(size_) + " ranks: new ranks ended before they joined";
}

// A rank that was replaced after the others had gone on without it: they do not wait for the new
// process.
void Supervisor::end_needless() {
  for (const int local : situation_.joining) {
    if (job_.rank(local) < size_ || !situation_.dismissed.insert(local).second) continue;
    note("rank " + std::to_string(job_.rank(local)) + " is ended: the others go on without it");
    ranks_[static_cast<std::size_t>(local)].process.signal(SIGKILL);
  }
}

// What a rank has told since the last call.
void Supervisor::hear(int local) {
  while (const auto message = ranks_[static_cast<std::size_t>(local)].link.next()) {
    const std::string& verb = message->verb;
    if (following_) note_phase(local, *message);
    if (verb == "joining" && situation_.growing.erase(local) > 0) situation_.waiting.insert(local);
    if (verb == "meeting") situation_.meeting.insert(local);
    if (verb == "joined") situation_.meeting.erase(local);
    if (verb == "joined" && situation_.joining.contains(local))
      store_process_->tell_joined(job_.rank(local));
    if (verb == "joined" && situation_.joining.erase(local) + situation_.growing.erase(local) +
                                    situation_.waiting.erase(local) >
                                0)
      situation_.never_joined = situation_.failed_starts = 0;
    if (verb == "refused") situation_.joining.insert(local);
    if (verb == "leaving") situation_.leaving.insert(local);
    if (verb == "multiple") situation_.usable = agent::usable_ranks_of(message->value);
    if (verb == "size") {
      size_ = std::atoi(message->value.c_str());
      if (!following_) end_needless();
    }
    if (verb == "step") situation_.step = std::atoll(message->value.c_str());
    if (verb == "copied") has_state_ = true;
    if (verb == "folder" || verb == "run") run_folder_ = message->value;
    if (verb == "run") situation_.trained = true;
    if (verb == "unsaved") situation_.unsaved = true;
    if (verb == "stopping") note_stop_of(local, message->value);
    if (verb == "rate")
      throughputs_.add(size_, std::strtod(message->value.c_str(), nullptr),
                       std::chrono::steady_clock::now());
    if (verb == "saved") {
      newest_checkpoint_ = message->value;
      saved_ = std::chrono::steady_clock::now();
    }
  }
}

// The end of a rank that had not joined the others yet, or that leaves them.
void Supervisor::note_end_of_newcomer(int local) {
  RankEnd& end = *situation_.ranks[static_cast<std::size_t>(local)];
  if (situation_.leaving.erase(local) > 0) end.left = true;
  const bool added = situation_.growing.erase(local) + situation_.waiting.erase(local) > 0;
  if (!added && situation_.joining.erase(local) == 0) return;
  if (situation_.dismissed.contains(local)) {
    end.let_go = true;
    return;
  }
  const bool is_scarce = error_of(end) == Errc::kUnavailable;
  ++(is_scarce ? situation_.failed_starts : situation_.never_joined);
  // A process that was killed once is no crash loop: the next one does not wait.
  const bool is_killed = end.status == ExitStatus{true, SIGKILL};
  if (is_scarce || situation_.never_joined > 1 || !is_killed) situation_.last_end = end.when;
  if (!added || end.told) return;
  end.let_go = true;
  note_lost(local, "it had not joined the others, which go on without it");
}

}  // namespace weft::launch::internal
