// How the supervisor changes the ranks of a running job: replaces lost ones, goes on without them,
// adds and removes some. decide() chooses; this executes.
#include <signal.h>

#include <cstdio>
#include <cstdlib>
#include <utility>

#include "weft/launch/internal/supervisor.h"

namespace weft::launch::internal {

std::string Supervisor::count_of_replacements() const {
  if (policy_.max_replacements == kNoLimit) return "";
  return " (" + std::to_string(situation_.replacements) + " of " +
         std::to_string(policy_.max_replacements) + ")";
}

void Supervisor::replace(int local) {
  const auto at = static_cast<std::size_t>(local);
  ++situation_.replacements;
  const std::string who = spares_.has_ready() ? "a spare" : "a new process";
  note_lost(local, who + " replaces it" + count_of_replacements());
  std::error_code ignored;
  std::filesystem::remove(error_file_of(local), ignored);
  ranks_[at] = start_rank(local, true);
  situation_.ranks[at].reset();
  situation_.joining.insert(local);
}

// Starts an additional rank in a free place.
void Supervisor::grow(int local) {
  const auto at = static_cast<std::size_t>(local);
  std::error_code ignored;
  std::filesystem::remove(error_file_of(local), ignored);
  if (at == ranks_.size()) {
    set_places(job_, options_, local + 1);
    positions_.set_ranks(local + 1);
    situation_.ranks.emplace_back(RankEnd{});
    ranks_.push_back(start_rank(local, true));
  } else {
    if (situation_.ranks[at]->let_go && !situation_.requested) ++situation_.replacements;
    ranks_[at] = start_rank(local, true);
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

std::string Supervisor::no_multiple(int ranks, int multiple) {
  return std::to_string(ranks) + " ranks: the mesh of this job uses multiples of " +
         std::to_string(multiple);
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
    return std::to_string(ranks) + " ranks: this job may have " + std::to_string(least) + " to " +
           std::to_string(policy_.max_ranks);
  if (ranks % situation_.multiple != 0) return no_multiple(ranks, situation_.multiple);
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
    if (verb == "joined" && situation_.joining.erase(local) + situation_.growing.erase(local) +
                                    situation_.waiting.erase(local) >
                                0)
      situation_.never_joined = 0;
    if (verb == "refused") situation_.joining.insert(local);
    if (verb == "leaving") situation_.leaving.insert(local);
    if (verb == "multiple") situation_.multiple = std::max(1, std::atoi(message->value.c_str()));
    if (verb == "size") {
      size_ = std::atoi(message->value.c_str());
      if (!following_) end_needless();
    }
    if (verb == "step") situation_.step = std::atoll(message->value.c_str());
    if (verb == "run") run_folder_ = message->value;
    if (verb == "run") situation_.trained = true;
    if (verb == "stopping" && !std::exchange(ranks_[static_cast<std::size_t>(local)].stops, true))
      note_departure((message->value == "signal" ? "a signal to rank " : "should_stop of rank ") +
                         std::to_string(job_.rank(local)),
                     false, {});
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
  ++situation_.never_joined;
  situation_.last_end = end.when;
  if (!added || end.told) return;
  end.let_go = true;
  note_lost(local, "it had not joined the others, which go on without it");
}

}  // namespace weft::launch::internal
