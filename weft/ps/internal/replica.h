// A shard on one server, as a member of the shard's chain: the protocol of chain replication (van
// Renesse and Schneider 2004), without threads, sockets and clock. For one thread.
//
//   client ── push ──> first member ── command ──> next … ── command ──> last member
//          <─ answer ─              <─── ack ────         <─── ack ─────
//
// The first member numbers the commands and applies them; the others apply them in the same order.
// A command is committed when the last member has applied it, and is answered then. So a client
// has an answer only if every member has the command. A pull is read at the first member, and
// answered when all that it shows is committed.
//
// Views. The members change only by a new view from the directory. If a member is lost, the others
// go on: those before a lost one have applied at least what it had, so they send to its successor
// what that one lacks. A server that was left out starts again, with nothing, as a new incarnation.
// One that joins receives the state in pieces, while the others go on. With all pieces, it counts
// for commits at once. It becomes a member only when it has all that was committed before.
#pragma once

#include <chrono>
#include <cstdint>
#include <list>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "weft/ps/internal/chain_message.h"
#include "weft/ps/internal/next_member.h"
#include "weft/ps/internal/replies.h"
#include "weft/ps/internal/shard.h"
#include "weft/ps/internal/state_pieces.h"

namespace weft::ps::internal {

// Rules that a test breaks on purpose.
enum class Flaw {
  kNone,
  kAnswersEarly,    // answers before the other members have the command
  kForgetsClients,  // applies repeated commands again
  kJoinsEarly,      // makes a server a member before it has the state
  kIgnoresJoining,  // does not wait for a server that joins
};

class Replica {
 public:
  using Token = Replies::Token;
  using Reply = Replies::Reply;

  struct Settings {
    Member me;
    std::uint32_t shard = 0;
    std::uint64_t memory_bytes = ~std::uint64_t{0};
    TableFiles files;
    Flaw flaw = Flaw::kNone;
  };
  explicit Replica(const Settings& settings);

  // Takes a newer view. Ignores older ones.
  void adopt(const View& view);
  const View& view() const { return view_; }
  const Member& me() const { return settings_.me; }
  // A later view is without this incarnation; it does not serve again.
  bool is_out() const { return is_out_; }
  bool is_first() const { return !is_out_ && !view_.members.empty() && view_.members[0] == me(); }
  // Neighbors in the chain, the joining server included.
  std::optional<Member> previous() const { return previous_; }
  std::optional<Member> next() const { return next_.member(); }
  // The next one is a joining server that does not have the state yet.
  bool next_receives_state() const { return next_.needs_state(); }
  // The view that makes the joining server a member, once it may be one.
  std::optional<View> promotion() const;

  // A client's request. `target` is the place of an in-memory pull, which must stay until the
  // answer or until forget().
  void request(Token token, const Request& request, std::span<std::byte> target = {});
  // Memory for the payload of the next answer to a pull.
  void lend(std::string memory) { spare_ = std::move(memory); }
  // The connection has ended.
  void forget(Token token);
  // A worker does not answer. Does nothing if it has joined again from another client. First
  // member only.
  void drop(std::uint32_t worker, std::uint64_t client);
  // Throws Error if this server lacks memory or a folder that the server before it in the chain
  // has. It must end then, and the others go on without it.
  void receive(const ChainMessage& message);
  // About how many bytes request() and receive() read or copy at once.
  std::uint64_t work_of(const Request& request) const;
  std::uint64_t work_of(const ChainMessage& message) const;
  // Sends signs of life, and what got lost. Call it at regular times.
  void tick();
  // Tells the neighbors that this server may not call tick() for so long.
  void announce_pause(std::chrono::milliseconds pause);

  struct Message {
    std::uint32_t server;
    std::string bytes;
  };
  std::vector<Message> take_messages() { return std::exchange(messages_, {}); }
  std::vector<Reply> take_replies() { return replies_.take(); }

  const Shard& shard() const { return shard_; }
  std::uint64_t applied() const { return applied_; }
  std::uint64_t committed() const { return replies_.committed(); }
  // For the reports of tests.
  std::string describe() const;

 private:
  struct Waiting {
    Token token;
    Request pull;
    std::span<std::byte> target;
    std::string keys;  // payload of a pull of rows
  };

  Answer submit(const Request& command);
  void answer_at(std::uint64_t position, Token token, Answer answer) {
    replies_.give_at(position, token, std::move(answer));
  }
  void commit(std::uint64_t position) { replies_.commit(position); }
  void serve_waiting();
  bool is_ready(const Request& pull) const;
  void answer_pull(const Waiting& waiting);
  void send(const Member& to, ChainMessage message);
  void send_next(const NextMember::Messages& messages);
  void send_ack();
  bool commits_alone() const;
  void take_entry(const ChainMessage& message);
  void take_state(const ChainMessage& message);
  void take_ack(const ChainMessage& message);

  const Settings settings_;
  Shard shard_;
  View view_;
  bool is_out_ = false;
  std::optional<Member> previous_;
  std::uint64_t applied_ = 0;
  std::uint64_t applied_at_view_ = 0;
  std::uint64_t committed_alone_ = 0;  // while the joining server had no state
  NextMember next_;
  StateReceiver receiver_;
  SaveReader save_;
  Replies replies_;
  std::list<Waiting> waiting_;
  std::string spare_;
  std::vector<Message> messages_;
};

}  // namespace weft::ps::internal
