#include "weft/rank_link/notices.h"

#include "weft/rank_link/messages.h"

namespace weft::rank_link {

void Notices::read() {
  while (const auto message = link_ != nullptr ? link_->next() : std::nullopt) {
    const auto said = decode<LauncherMessage>(*message);
    if (!said) continue;
    if (const auto* const asked = std::get_if<RanksWanted>(&*said))
      wanted_ = {asked->number, asked->newcomers};
    if (const auto* const lost = std::get_if<RanksLost>(&*said))
      lost_.insert(lost_.end(), lost->values.begin(), lost->values.end());
  }
}

std::pair<int, std::vector<int>> Notices::wanted() {
  const std::lock_guard lock(mutex_);
  read();
  return wanted_;
}

std::uint64_t Notices::losses() {
  const std::lock_guard lock(mutex_);
  read();
  return lost_.size();
}

std::vector<int> Notices::lost_since(std::uint64_t losses) {
  const std::lock_guard lock(mutex_);
  read();
  return {lost_.begin() + static_cast<std::ptrdiff_t>(losses), lost_.end()};
}

Notices& notices() {
  static Notices* const mine =
      new Notices(launcher());  // other threads may ask until the process ends
  return *mine;
}

}  // namespace weft::rank_link
