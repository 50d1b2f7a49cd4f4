#include "weft/launch/internal/node.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "weft/base/text/words.h"
#include "weft/launch/internal/pipe.h"
#include "weft/launch/internal/report.h"

namespace weft::launch::internal {
namespace {

// Programs that do not say when they train are taken to train after this time.
constexpr auto kStartUp = std::chrono::seconds(5);

Policy policy_of(const LaunchOptions& options, const Job& job) {
  return {.on_hang = job.on_hang,
          .max_restarts = options.max_restarts,
          .max_replacements = job.max_replacements,
          .min_ranks = job.min_ranks,
          .max_ranks = job.max_ranks,
          .survivor_grace = options.survivor_grace,
          .shutdown_timeout = options.shutdown_timeout};
}

// On nodes that meet, the membership says later which ranks are here.
observe::RankPage page_of(const Job& job) {
  return observe::RankPage::make(job.local_world, job.membership ? -1 : job.rank(0),
                                 job.membership ? 0 : job.world(), job.max_ranks);
}

void send_to(RankProcess& rank, int signal) {
  // A rank that stops already would be killed by a second signal.
  if (signal == SIGTERM && rank.stops) return;
  rank.process.signal(signal);
  // A stopped process reacts only to SIGKILL until it is continued.
  if (signal != SIGKILL) rank.process.signal(SIGCONT);
}

}  // namespace

Node::Node(const LaunchOptions& options_)
    : options(options_),
      out(std::make_unique<Console>(STDOUT_FILENO)),
      err(std::make_unique<Console>(STDERR_FILENO)),
      job(read_options(options)),
      policy(policy_of(options, job)),
      positions(page_of(job)) {
  positions.header().launcher = ::getpid();
  situation.first_rank = job.rank(0);
  situation.other_nodes = job.nodes > 1;
  if (policy.max_ranks > 0) situation.job.wanted.ranks = job.local_world;
}

void Node::note(const std::string& text) const { err->print("weft: " + text + "\n"); }

Console* Node::console(int stream) const { return stream == STDOUT_FILENO ? out.get() : err.get(); }

bool Node::is_ending() const {
  return situation.stop_sent || situation.stop_signals > 0 || situation.asked ||
         situation.grace_end;
}

void Node::send(int signal) {
  for (RankProcess& rank : ranks) send_to(rank, signal);
}

void Node::ask_to_stop(int signal) {
  const std::set<int> later = ranks_that_stop_later(situation);
  // Those that are not asked yet may be stopped, and the others wait for them.
  for (std::size_t i = 0; i < ranks.size(); ++i)
    send_to(ranks[i], later.contains(static_cast<int>(i)) ? SIGCONT : signal);
}

void Node::note_stopped_ranks() {
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (!situation.ranks[i] && ranks[i].process.is_stopped())
      situation.stopped.insert(static_cast<int>(i));
  }
}

void Node::tell_ranks(const rank_link::LauncherMessage& message) {
  for (RankProcess& rank : ranks)
    std::visit([&](const auto& one) { rank_link::tell(rank.link, one); }, message);
}

void Node::announce(int number, const std::set<int>& newcomers) {
  tell_ranks(rank_link::RanksWanted{number, {newcomers.begin(), newcomers.end()}});
}

void Node::place(std::size_t at, RankProcess started) {
  if (at == ranks.size()) {
    ranks.push_back(std::move(started));
    situation.ranks.emplace_back();
  } else {
    ranks[at] = std::move(started);
    situation.ranks[at].reset();
    situation.dismissed.erase(static_cast<int>(at));  // that was the process before
  }
}

bool Node::is_calm() const {
  bool all_stay = true;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const auto& end = situation.ranks[i];
    all_stay = all_stay && (end ? end->done_without || end->left : !ranks[i].leaves);
  }
  const bool begun =
      situation.trained || std::chrono::steady_clock::now() - attempt_began >= kStartUp;
  return begun && situation.newcomers.empty() && all_stay && !situation.store_lost;
}

int Node::least_ranks() const { return std::max(1, situation.job.usable.least(policy.min_ranks)); }

void Node::want_ranks(int number, const std::string& why) {
  number = std::max(least_ranks(), situation.job.usable.most(number));
  const SizeRequest request{1, number};
  if (situation.job.wanted != request) {
    note("the job shall have " + counted(number, "rank") + why);
    situation.job.never_joined = 0;
  }
  situation.job.wanted = request;
}

bool Node::was_out_of_memory() const { return out_of_memory_kills() > out_of_memory_before; }

void Node::note_out_of_memory() { out_of_memory_before = out_of_memory_kills(); }

std::string not_usable(int ranks, const rank_link::UsableRanks& usable) {
  if (usable.replicas > 0 && ranks / usable.multiple > usable.replicas) {
    return counted(ranks, "rank") + ": train.batch has " + std::to_string(usable.replicas) +
           " samples, of which each replica takes one at least; at most " +
           counted(usable.most(ranks), "rank") + ", or a larger train.batch";
  }
  return counted(ranks, "rank") + ": the mesh of this job uses " + usable.describe() +
         (usable.shards > 0 ? ", which divide its micro-shards" : "");
}

std::string why_it_keeps(int ranks) {
  return "the job keeps " + counted(ranks, "rank") + ": new ranks ended before they joined";
}

}  // namespace weft::launch::internal
