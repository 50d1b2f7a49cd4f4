// How the supervisor changes the ranks of a running job: replaces lost ones, goes on without them,
// adds and removes some. decide() chooses; this executes.
#include <signal.h>

#include <cstdio>
#include <cstdlib>
#include <utility>

#include "weft/base/error.h"
#include "weft/base/text/words.h"
#include "weft/launch/internal/one_node.h"
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
  return launch::count_of_replacements(node_.situation.job.replacements,
                                       node_.policy.max_replacements);
}

void Supervisor::replace(const Decision& decision) {
  const int local = decision.rank;
  const auto at = static_cast<std::size_t>(local);
  const std::string who = starter_.spares().has_ready() ? "a spare" : "a new process";
  node_.store->tell_coming(node_.job.rank(local));
  auto started = starter_.try_to_start(local);
  if (!started) return;
  commit(node_.situation, decision);
  note_lost(local, who + " replaces it" + count_of_replacements());
  node_.place(at, std::move(*started));
}

// Starts an additional rank in a free place.
void Supervisor::grow(const Decision& decision) {
  const int local = decision.rank;
  const auto at = static_cast<std::size_t>(local);
  const bool is_new = at == node_.ranks.size();
  if (is_new) set_places(node_.job, node_.options, local + 1);
  if (is_new) node_.positions.set_ranks(local + 1);
  auto started = starter_.try_to_start(local);
  if (!started) {
    if (is_new) set_places(node_.job, node_.options, local);
    if (is_new) node_.positions.set_ranks(local);
    return;
  }
  node_.place(at, std::move(*started));
  commit(node_.situation, decision);
  if (gone_.erase(local) > 0) node_.store->tell_back(node_.job.rank(local));
}

void Supervisor::go_on_without(int local, const std::string& consequence) {
  commit(node_.situation, {.act = Act::kGoOnWithout, .rank = local});
  note_lost(local, consequence);
}

// By SIGKILL: it waits for the others, and has nothing to lose.
void Supervisor::dismiss(int local) {
  hear(local);                                             // it may just have joined
  if (!node_.situation.newcomers.contains(local)) return;  // it has joined
  node_.situation.dismissed.insert(local);
  node_.note("rank " + std::to_string(node_.job.rank(local)) +
             " is ended: the others have ended before it had joined them");
  node_.ranks[static_cast<std::size_t>(local)].process.signal(SIGKILL);
}

// The launcher's own end does not wait for the process either.
void Supervisor::abandon(int local) {
  Process& process = node_.ranks[static_cast<std::size_t>(local)].process;
  node_.note("rank " + std::to_string(node_.job.rank(local)) + " (process " +
             std::to_string(process.pid()) +
             ") does not end after SIGKILL: it waits for a device or a file system. It is left to "
             "the system");
  process.leave();
  collect_end(local, {true, SIGKILL}, std::chrono::steady_clock::now());
}

void Supervisor::note_lost(int local, const std::string& consequence) const {
  const RankEnd& end = *node_.situation.ranks[static_cast<std::size_t>(local)];
  node_.note("rank " + std::to_string(node_.job.rank(local)) +
             " is lost: " + end.status.describe() + (end.cause ? ": " + end.cause->message : "") +
             "; " + consequence);
}

// Tells the others which lost ranks they need not wait for.
void Supervisor::tell_gone() {
  for (std::size_t i = 0; i < node_.situation.ranks.size(); ++i) {
    if (node_.situation.ranks[i] && !node_.situation.ranks[i]->status.ok() &&
        gone_.insert(static_cast<int>(i)).second)
      node_.store->tell_gone(node_.job.rank(static_cast<int>(i)));
  }
}

// Ranks that were replaced after the others had gone on without them: they do not wait for the new
// processes.
void Supervisor::end_needless() {
  for (const int local : replacements(node_.situation)) hear(local);  // may just have joined
  for (const int local : needless_ranks(node_.situation, node_.size)) {
    if (!node_.situation.dismissed.insert(local).second) continue;
    node_.note("rank " + std::to_string(node_.job.rank(local)) +
               " is ended: the others go on without it");
    node_.ranks[static_cast<std::size_t>(local)].process.signal(SIGKILL);
  }
}

// The end of a rank that had not joined the others yet, or that leaves them.
void Supervisor::note_end_of_newcomer(int local) {
  Situation& situation = node_.situation;
  RankEnd& end = *situation.ranks[static_cast<std::size_t>(local)];
  end.left = node_.ranks[static_cast<std::size_t>(local)].leaves;
  const bool added = is_added(situation, local);
  if (situation.newcomers.erase(local) == 0) return;
  if (situation.dismissed.contains(local))
    return commit(situation, {.act = Act::kGoOnWithout, .rank = local});
  const bool is_scarce = error_of(end) == Errc::kUnavailable;
  ++(is_scarce ? situation.failed_starts : situation.job.never_joined);
  // A process that was killed once is no crash loop: the next one does not wait.
  const bool is_killed = end.status == ExitStatus{true, SIGKILL};
  if (is_scarce || situation.job.never_joined > 1 || !is_killed) situation.last_end = end.when;
  if (added && !end.told)
    go_on_without(local, "it had not joined the others, which go on without it");
}

}  // namespace weft::launch::internal
