// Requests of this node's clients, from their arrival to their answer.
//
// A change is handed to the leader, and answered when this node applies it. Reads that have come
// together ask the leader for one index, and are answered when it is applied. A request that waits
// for a key is kept until the key changes, and then becomes a read. Both are sent again if they get
// no answer, or if another member leads.
//
// Invariant: each request is answered or forgotten once, and a client has one pending change.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "weft/store/internal/key_values.h"
#include "weft/store/internal/raft_options.h"

namespace weft::store::internal {

class ClientRequests {
 public:
  using Token = std::uint64_t;  // of a client's connection, chosen by the owner
  // Names a leader and its term; 0: none is known.
  using Leadership = std::uint64_t;
  struct Answer {
    Token token;
    Response response;
  };

  // The rounds of reads have the numbers after `round`. Another process of this member must begin
  // elsewhere: the leader may still answer the rounds of the process before it.
  explicit ClientRequests(std::uint64_t round) : last_round_(round) {}

  // Keeps a request, unless `state` has the answer already: then it is answered.
  void add(Token token, const Request& asked, const KeyValues& state, Time now);
  // Drops the token's request.
  void forget(Token token);
  // Answers a request that is not kept.
  void answer_now(Token token, Response response);
  std::vector<Answer> take_answers() { return std::exchange(answers_, {}); }

  // ---- changes
  // The command that the leader must get. None if the token has no pending change. The end of a
  // session has no answer, so it is forgotten.
  std::optional<std::string> submit(Token token, Leadership leadership, Time now);
  // The changes that must be submitted again. Reads without an answer are asked for again too.
  std::vector<Token> overdue(Leadership leadership, Time now);
  // The command was applied, with this response.
  void applied(const Request& command, const Response& response);
  // After another member's state was taken over: answers the changes that it includes.
  void answer_known(const KeyValues& state);

  // ---- reads
  bool has_new_reads() const { return !reads_.empty(); }
  // Begins a round with all reads that have come. Returns its number, for which the leader must
  // give an index; none if no read has come.
  std::optional<std::uint64_t> begin_reads(Leadership leadership, Time now);
  void set_index(std::uint64_t round, Index index);
  // Answers the reads whose index is applied.
  void end_reads(const KeyValues& state, Index applied);
  // Requests that wait for a change become reads when it comes.
  void wake_waits(const KeyValues& state);

  // ---- time
  // The first deadline.
  Time next() const;
  // Answers the requests whose deadline has passed.
  void expire(Time now, const std::string& reason);

  // This node is no member any more: everything must be sent again.
  void start_over();

 private:
  struct Pending {
    Request request;
    Time deadline{};
    Time submitted{};
    Leadership leadership = 0;  // in which it was submitted; 0: not yet
  };
  // A read that was answered or forgotten is no longer pending, or its token has a later request.
  struct Read {
    Token token;
    std::uint64_t sequence;  // of the request
  };
  struct Batch {  // of reads that share an index
    std::vector<Read> reads;
    Time asked{};
    Leadership leadership = 0;
    std::optional<Index> index;  // from the leader
  };

  void answer(Token token, Response response);
  void ask_again(const Batch& batch);

  std::map<Token, Pending> pending_;
  std::map<std::uint64_t, Token> writers_;  // client of a pending change -> token
  std::vector<Read> reads_;                 // not yet in a batch
  std::map<std::uint64_t, Batch> batches_;  // by round
  std::uint64_t last_round_;
  Revision woken_ = 0;  // revision up to which waiting requests were checked
  std::vector<Answer> answers_;
};

}  // namespace weft::store::internal
