// One thread repeats: take the launcher's report, keep the lease, publish the report, read all
// reports and the membership, offer the next one, tell the launcher what it says. Each call of the
// store has a short deadline, so the launcher's reports never wait long.
//
// The store may be silent for this node alone, or for all. Three rules keep both safe:
//
//   lease         The report is bound to it. When it ends, the other agents miss the report, and
//                 give up the ranks of the node.
//   fence()       An agent whose lease has ended reads the membership. If it still has the
//                 ranks of the node, nobody has acted, and they go on. Else they must end.
//   changes_from_ After a silence as long as a lease, all leases may have ended. Until nodes have
//                 had time to report again, a missing report means nothing, and none is offered.
//
// The membership changes only by compare-and-set on the revision that was read, and only by an
// agent whose own report is in the same listing. The agent with the lowest number offers at once,
// the others only if the membership stays as it is (is_my_turn()). An agent that is second reads
// again (seen_ = 0), and computes anew.
#include "weft/launch/internal/agent.h"

#include <algorithm>
#include <map>
#include <optional>
#include <thread>
#include <utility>

#include "weft/base/error.h"
#include "weft/comm/init.h"
#include "weft/launch/internal/agent_messages.h"
#include "weft/launch/internal/orders.h"
#include "weft/launch/internal/outbox.h"
#include "weft/store/client.h"

namespace weft::launch::internal {
namespace {

using namespace std::chrono_literals;
using Clock = Deadline::Clock;

// Longest wait for a change of the store, so that the launcher's texts do not wait.
constexpr auto kLook = 50ms;
constexpr auto kRenew = kNodeLease / 5;
constexpr auto kCallLimit = 500ms;
// After a silence of the store that is as long as a lease, the nodes have so long to report again.
constexpr auto kToReport = kNodeLease;

class Agent {
 public:
  Agent(const AgentOptions& options, rank_link::Link link)
      : options_(options),
        link_(std::move(link)),
        outbox_(link_),
        store_(options.socket),
        prefix_("weft/" + options.job + "/nodes/"),
        node_(options.node),
        lease_(options.lease) {}

  int run() {
    while (!link_.ended() && !over_) {
      try {
        outbox_.flush();
        hear();
        if (node_ < 0) join();
        renew();
        follow();
        answered();
      } catch (const Error& error) {
        // Without a majority of the nodes the store does not answer. The ranks train on.
        if (error.code() == Errc::kTimeout || error.code() == Errc::kUnavailable)
          unanswered(error);
        else
          give_up(exit_code(error.code()), error.message());
      }
    }
    // The launcher has the last word.
    while (!link_.ended()) link_.wait(Deadline::in(outbox_.flush() ? 1s : kLook));
    return 0;
  }

 private:
  Deadline soon() const { return Deadline::in(kCallLimit); }
  std::string key_of(int node) const { return prefix_ + "report/" + std::to_string(node); }
  std::string membership_key() const { return prefix_ + "plan"; }

  void join() {
    if (!report_) return;
    // No number is used twice: a node that comes back is another one for the membership.
    const int node = static_cast<int>(store_.add(prefix_ + "count", 1, soon())) - 1;
    lease_ = store_.grant(kNodeLease, soon());
    renewed_ = Clock::now();
    changes_from_ = renewed_ + kToReport;  // the others may have been without the store until now
    node_ = node;
    published_.reset();
    tell(NodeJoined{node_, lease_});
  }

  // Keeps the node's report in the store.
  void renew() {
    if (node_ < 0 || !report_) return;
    if (Clock::now() - renewed_ >= kRenew) {
      // The store counts from a moment after this one, so the next renewal is early, never late.
      const auto asked = Clock::now();
      if (!store_.keep_alive(lease_, soon())) return lose_lease();
      renewed_ = asked;
    }
    NodeReport report = *report_;
    report.node = node_;
    if (!report.leave.why.empty()) consider_store(report);
    if (published_ == report) return;
    try {
      store_.set({key_of(node_), to_text(report), lease_}, soon());
      published_ = report;
    } catch (const Error& error) {
      if (error.code() != Errc::kInvalidArgument) throw;
      lose_lease();
    }
  }

  // The lease has ended. Nobody has acted on it if no node could reach the store: then the node
  // keeps its number and its ranks.
  void lose_lease() {
    read(store_.list(prefix_, soon()));
    if (!keeps_its_ranks()) return fence();
    lease_ = store_.grant(kNodeLease, soon());
    renewed_ = Clock::now();
    published_.reset();
    seen_ = 0;
    tell(NodeJoined{node_, lease_});
  }

  // True if the membership has the ranks that the launcher was told to run.
  bool keeps_its_ranks() const {
    if (!told_ || membership_.attempt != told_->membership.attempt) return false;
    const auto& mine = told_->membership.ranks;
    return std::all_of(mine.begin(), mine.end(), [&](const auto& one) {
      const auto has = [&](const std::map<int, Placement>& places) {
        const auto found = places.find(one.first);
        return found != places.end() && found->second.incarnation == one.second.incarnation;
      };
      return has(membership_.ranks) || has(membership_.successors);
    });
  }

  // A node leaves after the store has forgotten the nodes that left before: until then, the loss of
  // one more could leave no majority.
  void consider_store(NodeReport& report) {
    if (options_.is_etcd) return;
    const store::StoreStatus status = store_.status(soon());
    const auto stay = std::ranges::count_if(nodes_, [&](const NodeReport& other) {
      return other.node == node_ || !membership_.leaving.contains(other.node);
    });
    if (std::ssize(status.voters) > stay) report.leave = {};
    report.holds_store = !status.decides_without(status.node);
  }

  // The others replace the ranks of a node whose lease has ended. Its own ranks must not go on.
  void fence() {
    tell(Fenced{});
    // Reports of ranks that end now must not appear under the new number of the node.
    if (report_) report_->ranks.clear();
    node_ = -1;
    told_.reset();
  }

  void hear() {
    while (const auto text = link_.next()) {
      if (const auto message = rank_link::decode<NodeMessage>(*text))
        report_ = node_report_of(std::get<NodeState>(*message).value);
    }
  }

  // Waits for a change, computes the next membership and does what it says.
  void follow() {
    if (node_ < 0) {
      std::this_thread::sleep_for(kLook);
      return;
    }
    const auto listing = seen_ == 0 ? std::optional(store_.list(prefix_, soon()))
                                    // wait() returns 100 ms before its deadline
                                    : store_.wait(prefix_, seen_, Deadline::in(look() + 100ms));
    if (listing) {
      seen_ = listing->revision;
      read(*listing);
    }
    if (!is_here()) return;
    if (comes_too_late(membership_, had_orders_))
      return give_up(
          exit_code(Errc::kUnavailable),
          "the job " + options_.job + " has ended already; use another --rdzv-id for another job");
    Membership next = membership_;
    if (membership_revision_ == 0) next.policy = to_text(options_.policy);
    if (next.policy != to_text(options_.policy))
      return give_up(exit_code(Errc::kBadConfig),
                     "the flags of this node are not those of the job: " +
                         to_text(options_.policy) + " here, " + next.policy + " there");
    if (!membership_.formed)
      changes_from_ = {};  // all nodes of the membership report since before it
    if (Clock::now() >= changes_from_)
      next = next_membership(next, nodes_, options_.policy, last_call_is_over());
    const bool differs = !(next == membership_) || membership_revision_ == 0;
    if (!differs) turn_.reset();
    if (differs && is_my_turn()) {
      const auto swap =
          store_.compare_and_set({membership_key(), to_text(next)}, membership_revision_, soon());
      if (!swap.done) {
        seen_ = 0;  // read again
        return;
      }
      membership_ = next;
      membership_revision_ = swap.value->revision;
      turn_.reset();
    }
    if (membership_revision_ == 0) return;
    tell_lost();
    tell_gone();
    obey();
    check_join_limit();
  }

  bool is_my_turn() {
    if (!turn_ || turn_->first != membership_revision_)
      turn_.emplace(membership_revision_, Clock::now() + pause_before_offer(node_, nodes_));
    return Clock::now() >= turn_->second;
  }

  // How long to wait for a change.
  Clock::duration look() const {
    const auto left = turn_ ? turn_->second - Clock::now() : Clock::duration{};
    return left > 0ms ? std::clamp<Clock::duration>(left, 1ms, kLook) : kLook;
  }

  void read(const store::Listing& listing) {
    const std::string reports = prefix_ + "report/";
    nodes_.clear();
    membership_ = {};
    membership_revision_ = 0;
    for (const store::Item& item : listing.items) {
      if (item.key.starts_with(reports)) nodes_.push_back(node_report_of(item.value.bytes));
      if (item.key != membership_key()) continue;
      membership_ = membership_of(item.value.bytes);
      membership_revision_ = item.value.revision;
    }
  }

  // A membership that is made without this node's report would take it for lost.
  bool is_here() const {
    return std::any_of(nodes_.begin(), nodes_.end(),
                       [&](const NodeReport& report) { return report.node == node_; });
  }

  bool last_call_is_over() {
    if (static_cast<int>(nodes_.size()) < options_.policy.min_nodes) {
      enough_since_.reset();
      return false;
    }
    if (!enough_since_) enough_since_ = Clock::now();
    return Clock::now() - *enough_since_ >= options_.last_call;
  }

  // Ranks of this node may wait for ranks whose node is silent.
  void tell_lost() {
    const std::set<int> lost = lost_with_nodes(followed_, membership_, nodes_);
    if (!lost.empty()) tell(rank_link::RanksLost{{{lost.begin(), lost.end()}}});
    followed_ = membership_;
  }

  // Writes which ranks will not come, and which are coming, for ranks that form their group again
  // (comm/init.h). Every agent does it, since one of them may die in between. The membership is
  // read after the key, so an older membership never replaces a newer one.
  void tell_gone() {
    std::string text;
    for (const int rank : membership_.gone) text += std::to_string(rank) + " ";
    for (const auto& [rank, place] : membership_.ranks)
      if (!place.first && !place.member) text += "*" + std::to_string(rank) + " ";
    const auto telling = std::pair(membership_.attempt, text);
    if (told_gone_ == telling) return;
    const std::string key = comm::gone_ranks_key(options_.job, membership_.attempt);
    const auto there = store_.get(key, soon());
    const auto listing = store_.list(membership_key(), soon());
    if (listing.items.empty() || listing.items[0].value.revision != membership_revision_) {
      seen_ = 0;
      return;
    }
    const bool same = there ? there->bytes == text : text.empty();
    if (!same && !store_.compare_and_set({key, text}, there ? there->revision : 0, soon()).done) {
      seen_ = 0;
      return;
    }
    told_gone_ = telling;
  }

  void obey() {
    NodeOrders orders = orders_for(node_, membership_, nodes_);
    if (told_ == orders) return;
    // Orders take the place of those before, so they need not wait in the outbox.
    if (!outbox_.flush() || !rank_link::tell(link_, NewOrders{orders})) return;
    told_ = std::move(orders);
    had_orders_ = true;
  }

  void check_join_limit() {
    if (membership_.formed || !membership_.end.empty() ||
        Clock::now() - started_ < options_.join_limit)
      return;
    give_up(
        exit_code(Errc::kTimeout),
        std::to_string(nodes_.size()) + " of at least " +
            std::to_string(options_.policy.min_nodes) +
            " nodes came in time; start the others with the same --rdzv-endpoint and --rdzv-id");
  }

  void answered() {
    const auto before = std::exchange(heard_, Clock::now());
    if (heard_ - before >= kNodeLease) changes_from_ = heard_ + kToReport;
    if (alone_) tell(StoreBack{});
    alone_ = false;
  }

  void unanswered(const Error& error) {
    seen_ = 0;
    const auto silent = Clock::now() - heard_;
    const auto limit = membership_.formed ? options_.alone_limit : options_.join_limit;
    if (silent >= kAloneAfter && !alone_) {
      alone_ = true;
      tell(StoreSilent{{error.message()}});
    }
    if (silent >= limit) give_up(exit_code(Errc::kTimeout), error.message());
    std::this_thread::sleep_for(kLook);
  }

  void give_up(int code, const std::string& why) {
    if (over_) return;
    tell(Over{code, why});
    over_ = true;
  }

  // Nothing follows Over.
  template <class M>
  void tell(const M& message) {
    if (!over_) outbox_.tell(message);
  }

  const AgentOptions options_;
  rank_link::Link link_;
  Outbox outbox_;
  store::Client store_;
  const std::string prefix_;
  int node_;
  store::LeaseId lease_;
  std::optional<NodeReport> report_, published_;
  std::vector<NodeReport> nodes_;
  Membership membership_, followed_;
  store::Revision membership_revision_ = 0;  // 0: there is no membership
  store::Revision seen_ = 0;                 // of the last listing; 0: read again
  // The membership that this node would change, and when it offers another one.
  std::optional<std::pair<store::Revision, Clock::time_point>> turn_;
  std::optional<NodeOrders> told_;
  // This node has taken part, also if it was fenced since.
  bool had_orders_ = options_.had_orders || options_.node >= 0;
  std::optional<std::pair<int, std::string>> told_gone_;
  const Clock::time_point started_ = Clock::now();
  Clock::time_point heard_ = started_, renewed_{};
  Clock::time_point changes_from_ = started_ + kToReport;  // changes a membership not before
  std::optional<Clock::time_point> enough_since_;
  bool alone_ = false, over_ = false;
};

}  // namespace

int run_agent(const AgentOptions& options, rank_link::Link link) {
  return Agent(options, std::move(link)).run();
}

}  // namespace weft::launch::internal
