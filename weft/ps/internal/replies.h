// The answers of a replica to its clients. An answer is given when all that it shows is committed:
// when the last member of the chain has applied it. For one thread.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "weft/ps/internal/request.h"

namespace weft::ps::internal {

class Replies {
 public:
  // The connection of a client.
  using Token = std::uint64_t;
  struct Reply {
    Token token;
    Answer answer;
  };

  // `answers_early`: true breaks the rule on purpose, for a test.
  explicit Replies(bool answers_early) : answers_early_(answers_early) {}

  std::uint64_t committed() const { return committed_; }
  void commit(std::uint64_t position);
  void give(Token token, Answer answer) { ready_.push_back({token, std::move(answer)}); }
  // The answer shows the commands up to this one.
  void give_at(std::uint64_t position, Token token, Answer answer);
  // Gives the answers that are not committed, as kElsewhere: this server is out.
  void give_up();
  void forget(Token token);
  std::vector<Reply> take() { return std::exchange(ready_, {}); }

 private:
  const bool answers_early_;
  std::uint64_t committed_ = 0;
  std::multimap<std::uint64_t, Reply> uncommitted_;  // by position
  std::vector<Reply> ready_;
};

}  // namespace weft::ps::internal
