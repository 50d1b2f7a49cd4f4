#include "weft/launch/internal/spares.h"

#include <algorithm>
#include <utility>

#include "weft/base/error.h"
#include "weft/rank_link/messages.h"

namespace weft::launch::internal {

std::optional<Time> next_spare(const SpareSituation& situation) {
  if (situation.running >= situation.wanted || !situation.calm_since) return std::nullopt;
  const Time calm = *situation.calm_since + kSpareDelay;
  if (situation.ended == 0) return calm;
  return std::max(calm, situation.last_end + back_off(situation.ended, kMaxSpareBackOff));
}

Spares::Spares(int wanted, Start start, Note note, OnEnd on_end)
    : start_(std::move(start)), note_(std::move(note)), on_end_(std::move(on_end)) {
  situation_.wanted = wanted;
}

void Spares::watch(std::vector<pollfd>& watched) const {
  for (const Spare& spare : spares_) {
    watched.push_back({spare.process.pidfd(), POLLIN, 0});
    if (!spare.link.ended()) watched.push_back({spare.link.fd(), POLLIN, 0});
    spare.out.watch(watched);
    spare.err.watch(watched);
  }
}

void Spares::look(Time now, bool calm) {
  if (situation_.wanted == 0) return;
  for (Spare& spare : spares_) {
    spare.out.pump();
    spare.err.pump();
    while (const auto message = spare.link.next()) {
      const auto said = rank_link::decode<rank_link::RankMessage>(*message);
      if (!said || !std::holds_alternative<rank_link::Ready>(*said) || spare.ready) continue;
      spare.ready = true;
      note_("a spare is ready");
    }
  }
  remove_ended(now);
  if (!calm) situation_.calm_since.reset();
  if (calm && !situation_.calm_since) situation_.calm_since = now;
  if (const auto due = next(); due && now >= *due) start(now);
}

void Spares::remove_ended(Time now) {
  std::erase_if(spares_, [&](Spare& spare) {
    const auto status = spare.process.poll();
    if (!status) return false;
    spare.out.finish();
    spare.err.finish();
    on_end_(spare.process.pid());
    if (now - spare.started >= kLongLife) situation_.ended = 0;
    ++situation_.ended;
    situation_.last_end = now;
    note_("a spare has ended: " + status->describe() + "; another one is started later");
    return true;
  });
  situation_.running = static_cast<int>(spares_.size());
}

void Spares::start(Time now) {
  try {
    spares_.push_back(start_());
    spares_.back().started = now;
  } catch (const Error& error) {  // such as no memory for a process: the job goes on without it
    ++situation_.ended;
    situation_.last_end = now;
    note_("no spare could be started: " + error.message() + "; it is tried again later");
  }
  situation_.running = static_cast<int>(spares_.size());
}

std::optional<Spare> Spares::take() {
  for (auto at = spares_.begin(); at != spares_.end(); ++at) {
    if (!at->ready || at->process.poll()) continue;
    Spare taken = std::move(*at);
    spares_.erase(at);
    situation_.running = static_cast<int>(spares_.size());
    situation_.calm_since.reset();
    situation_.ended = 0;
    return taken;
  }
  return std::nullopt;
}

bool Spares::has_ready() const {
  return std::any_of(spares_.begin(), spares_.end(), [](const Spare& one) { return one.ready; });
}

std::vector<pid_t> Spares::groups() const {
  std::vector<pid_t> groups;
  for (const Spare& spare : spares_) groups.push_back(spare.process.pid());
  return groups;
}

void Spares::end(Spare spare) {
  const pid_t group = spare.process.pid();
  { const Process ending = std::move(spare.process); }
  on_end_(group);
}

void Spares::clear() {
  for (Spare& spare : spares_) end(std::move(spare));
  spares_.clear();
  situation_.running = 0;
}

}  // namespace weft::launch::internal
