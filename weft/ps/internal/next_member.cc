#include "weft/ps/internal/next_member.h"

#include <algorithm>
#include <utility>

namespace weft::ps::internal {
namespace {

// Ticks without progress after which commands are sent again; pieces of a state, which are larger.
constexpr std::uint64_t kCommandsAgain = 3, kStateAgain = 10;
// A large command has more ticks, since it takes a while to arrive and to be applied.
constexpr std::uint64_t kBytesPerTick = 4'000'000;

}  // namespace

void NextMember::replace(const std::optional<Member>& member) {
  member_ = member;
  has_.reset();
  end_state();
  silent_ticks_ = 0;
  if (!member) log_.clear();
}

// The member has all of the state, or needs it no longer.
void NextMember::end_state() {
  needs_state_ = false;
  state_ = StateSender();
  piece_bytes_.clear();
}

NextMember::Messages NextMember::add(std::uint64_t position, std::string command) {
  log_.push_back({position, std::move(command)});
  if (!has_) return {};
  return {{.kind = ChainMessage::Kind::kEntry, .position = position, .payload = log_.back().bytes}};
}

NextMember::Messages NextMember::take_ack(const ChainMessage& ack, Shard& shard,
                                          std::uint64_t applied) {
  if (ack.position == kNothing) {
    if (!std::exchange(needs_state_, true)) return begin_state(shard, applied);
    if (ack.transfer == transfer_ && ack.piece == piece_ + 1) return next_piece(shard, applied);
    return {};
  }
  const bool is_first_word = !has_;
  if (is_first_word || ack.position > *has_) silent_ticks_ = 0;
  end_state();
  has_ = std::max(has_.value_or(0), ack.position);
  return is_first_word ? missing() : Messages{};
}

void NextMember::commit(std::uint64_t committed) {
  const std::uint64_t settled = std::min(has_.value_or(0), committed);
  while (!log_.empty() && log_.front().position <= settled) log_.pop_front();
}

NextMember::Messages NextMember::missing() {
  silent_ticks_ = 0;
  if (needs_state_)
    return {{.kind = ChainMessage::Kind::kState,
             .position = state_position_,
             .transfer = transfer_,
             .piece = piece_,
             .payload = piece_bytes_}};
  Messages messages;
  for (const Entry& entry : log_)
    if (entry.position > *has_)
      messages.push_back(
          {.kind = ChainMessage::Kind::kEntry, .position = entry.position, .payload = entry.bytes});
  return messages;
}

NextMember::Messages NextMember::tick(std::uint64_t applied) {
  Messages messages{{.kind = ChainMessage::Kind::kAlive, .position = applied}};
  if (!has_ && !needs_state_) return messages;  // it has not told yet what it has
  if (has_ && *has_ >= applied) return messages;
  if (++silent_ticks_ < ticks_until_again()) return messages;
  const Messages again = missing();
  messages.insert(messages.end(), again.begin(), again.end());
  return messages;
}

std::uint64_t NextMember::ticks_until_again() const {
  if (needs_state_) return kStateAgain;
  const auto lacks = std::find_if(log_.begin(), log_.end(),
                                  [&](const Entry& entry) { return entry.position > *has_; });
  return kCommandsAgain + (lacks == log_.end() ? 0 : lacks->bytes.size() / kBytesPerTick);
}

NextMember::Messages NextMember::begin_state(Shard& shard, std::uint64_t applied) {
  state_position_ = applied;
  ++transfer_;
  piece_ = 0;
  piece_bytes_ = state_.begin(shard);
  return missing();
}

NextMember::Messages NextMember::next_piece(Shard& shard, std::uint64_t applied) {
  try {
    piece_bytes_ = state_.next(shard);
    ++piece_;
    return missing();
  } catch (const Error& error) {
    if (error.code() != Errc::kAborted && error.code() != Errc::kUnavailable) throw;
    return begin_state(shard, applied);
  }
}

std::string NextMember::describe() const {
  std::string text = ", log " + std::to_string(log_.size());
  if (!member_) return text;
  text += ", before server " + std::to_string(member_->server) + ", which has " +
          (has_ ? std::to_string(*has_) : "told nothing");
  return text + (needs_state_ ? " and needs the state" : "");
}

}  // namespace weft::ps::internal
