// Servers of one shard and their clients under a simulated network and clock, drawn from a seed:
// messages are delayed, reordered, repeated and lost, links are cut, servers crash and come back.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "weft/base/random.h"
#include "weft/ps/internal/arrange.h"

namespace weft::ps::testing {

// A promise was broken.
struct Violation : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class SimulatedChain {
 public:
  using Time = std::int64_t;  // microseconds
  using Token = internal::Replica::Token;
  struct Settings {
    std::uint32_t servers = 2;
    Time delay = 1000;  // most of a message
    double loss = 0, repeats = 0;
    internal::Flaw flaw = internal::Flaw::kNone;
  };
  static constexpr Time kTick = 20'000, kTimeout = 150'000;

  SimulatedChain(const Settings& settings, std::uint64_t seed)
      : settings_(settings), random_(seed, 1) {
    nodes_.resize(settings.servers);
    for (std::uint32_t node = 0; node < settings.servers; ++node) start(node);
  }

  Time now() const { return now_; }
  Random& random() { return random_; }
  const View& view() const { return view_; }
  const internal::Replica* replica(const Member& member) const {
    const auto& replica = nodes_[member.server].replica;
    return replica && replica->me() == member ? replica.get() : nullptr;
  }
  std::string describe() const {
    std::string text = "view " + std::to_string(view_.number) + " of";
    for (const Member& member : view_.members)
      text += " server " + std::to_string(member.server) + (replica(member) ? "" : " (gone)");
    if (view_.joining) text += ", joining server " + std::to_string(view_.joining->server);
    for (const Node& node : nodes_)
      if (node.replica) text += "; " + node.replica->describe();
    return text;
  }
  std::uint64_t crashes() const { return crashes_; }
  std::uint64_t takeovers() const { return takeovers_; }
  std::uint64_t lost() const { return lost_; }

  void after(Time delay, std::function<void()> what) {
    events_.emplace(now_ + delay, std::move(what));
  }
  void run(Time until, const std::function<bool()>& is_over) {
    while (!events_.empty() && events_.begin()->first <= until && !is_over()) {
      now_ = events_.begin()->first;
      const auto what = std::move(events_.begin()->second);
      events_.erase(events_.begin());
      what();
    }
  }

  // Over a network that may lose, repeat and delay it.
  void carry(const std::function<void()>& deliver) {
    if (is_rough_ && random_.uniform() < settings_.loss) {
      ++lost_;
      return;
    }
    after(draw_delay(), deliver);
    // A repeated message may come when another view holds.
    if (is_rough_ && random_.uniform() < settings_.repeats) after(15 * draw_delay(), deliver);
  }
  // A client's request. The answer goes to `answers`.
  void request(std::uint32_t node, Token token, const std::string& bytes,
               const std::function<void(const internal::Answer&)>& answers) {
    answers_[token] = answers;
    carry([this, node, token, bytes] {
      Node& to = nodes_[node];
      if (!to.replica) return;
      to.replica->request(token, internal::decode_request(bytes));
      flush(node);
    });
  }

  // Crashes a server, if another one that is alive has the whole state. It comes back empty.
  void crash(std::uint32_t node, Time lasts) {
    bool is_safe = false;
    for (const Member& member : view_.members)
      is_safe = is_safe || (member.server != node && replica(member) != nullptr);
    if (!is_safe || !nodes_[node].replica) return;
    ++crashes_;
    nodes_[node].replica.reset();
    after(lasts, [this, node] { start(node); });
  }
  // The other servers do not reach this one for a while; clients do.
  void cut(std::uint32_t node, Time lasts) { cut_until_[node] = now_ + lasts; }
  // From now on no message is lost or repeated.
  void calm() { is_rough_ = false; }
  // The first server notices that a worker is gone.
  void drop(std::uint32_t worker, std::uint64_t client) {
    for (std::uint32_t node = 0; node < nodes_.size(); ++node) {
      if (!nodes_[node].replica || !nodes_[node].replica->is_first()) continue;
      nodes_[node].replica->drop(worker, client);
      flush(node);
    }
  }

 private:
  struct Node {
    std::unique_ptr<internal::Replica> replica;
    std::optional<Member> previous, next;
    Time previous_heard = 0, next_heard = 0;
    std::uint64_t run = 0;  // counts starts
  };

  Time draw_delay() {
    return 50 + static_cast<Time>(random_.below(static_cast<std::uint64_t>(settings_.delay)));
  }

  void renew(std::uint32_t node) {
    internal::Replica::Settings settings;
    settings.me = {node, random_.next_u64() | 1};
    settings.flaw = settings_.flaw;
    nodes_[node].replica = std::make_unique<internal::Replica>(settings);
  }
  void start(std::uint32_t node) {
    renew(node);
    tick(node, ++nodes_[node].run);
  }

  void tick(std::uint32_t number, std::uint64_t run) {
    Node& node = nodes_[number];
    if (!node.replica || node.run != run) return;
    arrange(number);
    node.replica->tick();
    flush(number);
    after(kTick, [this, number, run] { tick(number, run); });
  }

  void arrange(std::uint32_t number) {
    Node& node = nodes_[number];
    node.replica->adopt(view_);
    flush(number);
    if (node.replica->is_out()) renew(number);
    const auto notice = [&](std::optional<Member>& known, Time& heard,
                            const std::optional<Member>& neighbor) {
      if (known != neighbor) heard = now_;
      known = neighbor;
    };
    notice(node.previous, node.previous_heard, node.replica->previous());
    notice(node.next, node.next_heard, node.replica->next());
    internal::Place place;
    place.founds = number == 0;
    place.previous_is_silent = node.previous && now_ - node.previous_heard > kTimeout;
    place.next_is_silent = node.next && now_ - node.next_heard > kTimeout;
    const auto next = internal::next_view(*node.replica, view_, place);
    if (!next) return;
    // The directory takes a while, and another server may be first.
    after(draw_delay(), [this, next = *next] {
      if (next.number != view_.number + 1) return;
      // It leaves out a living server, and the one that asked for it has crashed since: two faults
      // at once. Take it as lost with that server.
      const bool is_alive =
          std::any_of(next.members.begin(), next.members.end(),
                      [this](const Member& member) { return replica(member) != nullptr; });
      if (!is_alive) return;
      if (!view_.members.empty() && !(next.members[0] == view_.members[0])) ++takeovers_;
      view_ = next;
    });
  }

  bool is_cut(std::uint32_t node) const {
    const auto found = cut_until_.find(node);
    return found != cut_until_.end() && now_ < found->second;
  }

  void flush(std::uint32_t number) {
    internal::Replica& replica = *nodes_[number].replica;
    for (internal::Replica::Message& message : replica.take_messages()) {
      const std::uint32_t to = message.server;
      if (is_cut(number) || is_cut(to)) continue;
      carry([this, to, bytes = std::move(message.bytes)] { deliver(to, bytes); });
    }
    for (const internal::Replica::Reply& reply : replica.take_replies())
      carry([this, reply] { answers_.at(reply.token)(reply.answer); });
  }

  void deliver(std::uint32_t to, const std::string& bytes) {
    Node& node = nodes_[to];
    if (!node.replica) return;
    const internal::ChainMessage message = internal::decode_chain_message(bytes);
    if (message.to == node.replica->me()) {
      if (message.from == node.replica->previous()) node.previous_heard = now_;
      if (message.from == node.replica->next()) node.next_heard = now_;
    }
    node.replica->receive(message);
    flush(to);
  }

  const Settings settings_;
  Random random_;
  Time now_ = 0;
  std::multimap<Time, std::function<void()>> events_;
  std::vector<Node> nodes_;
  View view_;
  std::map<Token, std::function<void(const internal::Answer&)>> answers_;
  std::map<std::uint32_t, Time> cut_until_;
  bool is_rough_ = true;
  std::uint64_t crashes_ = 0, takeovers_ = 0, lost_ = 0;
};

}  // namespace weft::ps::testing
