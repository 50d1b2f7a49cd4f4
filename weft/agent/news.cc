#include "weft/agent/news.h"

#include "weft/agent/messages.h"

namespace weft::agent {

void News::read() {
  while (const auto message = link_ != nullptr ? link_->next() : std::nullopt) {
    const auto said = decode<LauncherMessage>(*message);
    if (!said) continue;
    if (const auto* const asked = std::get_if<RanksWanted>(&*said))
      wanted_ = {asked->number, asked->newcomers};
    if (const auto* const lost = std::get_if<RanksLost>(&*said))
      lost_.insert(lost_.end(), lost->values.begin(), lost->values.end());
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
