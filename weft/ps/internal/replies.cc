#include "weft/ps/internal/replies.h"

#include <algorithm>

namespace weft::ps::internal {

void Replies::commit(std::uint64_t position) {
  committed_ = std::max(committed_, position);
  const auto end = uncommitted_.upper_bound(committed_);
  for (auto one = uncommitted_.begin(); one != end; ++one) ready_.push_back(std::move(one->second));
  uncommitted_.erase(uncommitted_.begin(), end);
}

void Replies::give_at(std::uint64_t position, Token token, Answer answer) {
  if (committed_ >= position || answers_early_) return give(token, std::move(answer));
  uncommitted_.emplace(position, Reply{token, std::move(answer)});
}

void Replies::give_up() {
  for (auto& [position, reply] : uncommitted_) {
    reply.answer.outcome = Outcome::kElsewhere;
    ready_.push_back(std::move(reply));
  }
  uncommitted_.clear();
}

void Replies::forget(Token token) {
  std::erase_if(uncommitted_, [&](const auto& one) { return one.second.token == token; });
  std::erase_if(ready_, [&](const Reply& one) { return one.token == token; });
}

}  // namespace weft::ps::internal
