#include "weft/agent/news.h"

#include <iterator>
#include <sstream>

namespace weft::agent {
namespace {

std::vector<int> numbers_of(std::istream& text) {
  return {std::istream_iterator<int>(text), std::istream_iterator<int>()};
}

}  // namespace

void News::read() {
  while (const auto message = link_ != nullptr ? link_->next() : std::nullopt) {
    std::istringstream text(message->value);
    if (message->verb == "ranks") {
      text >> wanted_.first;
      wanted_.second = numbers_of(text);
    } else if (message->verb == "lost") {
      for (const int rank : numbers_of(text)) lost_.push_back(rank);
    }
  }
}

std::pair<int, std::vector<int>> News::wanted() {
  const std::lock_guard lock(mutex_);
  read();
  return wanted_;
}

std::uint64_t News::losses() {
  const std::lock_guard lock(mutex_);
  read();
  return lost_.size();
}

std::vector<int> News::lost_since(std::uint64_t losses) {
  const std::lock_guard lock(mutex_);
  read();
  return {lost_.begin() + static_cast<std::ptrdiff_t>(losses), lost_.end()};
}

News& news() {
  static News* const mine = new News(launcher());  // other threads may ask until the process ends
  return *mine;
}

}  // namespace weft::agent
