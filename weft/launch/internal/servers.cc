#include "weft/launch/internal/servers.h"

#include <algorithm>
#include <csignal>
#include <utility>

#include "weft/base/error.h"
#include "weft/rank_link/messages.h"

namespace weft::launch::internal {
namespace {

constexpr auto kServersEnd = std::chrono::seconds(3);

}  // namespace

void Servers::run(const std::set<int>& wanted, Time now) {
  for (auto& [server, place] : servers_) {
    if (!wanted.contains(server)) drop(place);
  }
  std::erase_if(servers_, [&](const auto& entry) { return !wanted.contains(entry.first); });
  for (const int server : wanted) {
    const auto [place, is_new] = servers_.try_emplace(server);
    if (is_new) start(server, place->second, now);
  }
}

void Servers::watch(std::vector<pollfd>& watched) const {
  for (const auto& [server, place] : servers_) {
    if (!place.running) continue;
    watched.push_back({place.running->process.pidfd(), POLLIN, 0});
    if (!place.running->link.ended()) watched.push_back({place.running->link.fd(), POLLIN, 0});
    place.running->out.watch(watched);
    place.running->err.watch(watched);
  }
}

void Servers::look(Time now) {
  for (auto& [server, place] : servers_) {
    if (place.running) {
      place.running->out.pump();
      place.running->err.pump();
      hear(server, place);
      const auto status = place.running->process.poll();
      if (status) note_end(server, place, *status, now);
    }
    const bool is_due = !place.running && !place.given_up && !failure_;
    if (is_due && !place.restarts.pause(now)) start(server, place, now);
  }
}

std::optional<Servers::Time> Servers::next(Time now) const {
  std::optional<Time> next;
  for (const auto& [server, place] : servers_) {
    if (place.running || place.given_up || failure_) continue;
    const Time due = place.restarts.pause(now).value_or(now);
    next = next ? std::min(*next, due) : due;
  }
  return next;
}

std::set<int> Servers::replicated() const {
  std::set<int> all;
  for (const auto& [server, place] : servers_) {
    if (place.running && place.replicated) all.insert(server);
  }
  return all;
}

std::vector<pid_t> Servers::groups() const {
  std::vector<pid_t> groups;
  for (const auto& [server, place] : servers_) {
    if (place.running) groups.push_back(place.running->process.pid());
  }
  return groups;
}

std::string Servers::describe() const {
  std::string text;
  for (const auto& [server, place] : servers_) {
    text += (text.empty() ? "" : "; ") + server_name(server) + ": ";
    if (!place.running) {
      text += place.given_up ? "ended, and is not started again" : "ended, and is started again";
      continue;
    }
    text += "process " + std::to_string(place.running->process.pid()) +
            (place.serves ? ", serves" : ", starts") +
            (place.replicated ? ", its shards have two copies" : "");
  }
  return text;
}

void Servers::end() {
  for (auto& [server, place] : servers_) {
    if (place.running) place.running->process.signal(SIGTERM);
    if (place.running) place.running->process.signal(SIGCONT);
  }
  const Deadline deadline = Deadline::in(kServersEnd);
  for (auto& [server, place] : servers_) {
    if (!place.running) continue;
    if (!place.running->process.wait(deadline))
      options_.note(server_name(server) + " did not end within 3 s: killing it");
    drop(place);
  }
  servers_.clear();
  failure_.reset();
}

void Servers::start(int server, Place& place, Time now) {
  place.restarts.began(now);
  place.serves = place.replicated = false;
  try {
    place.running.emplace(options_.start(server));
  } catch (const std::exception& error) {  // also one of the file system
    if (!place.ever_served) throw;
    place.restarts.ended(now);
    const ServerEnd end{{true, 0}, true, options_.has_copies, place.restarts.failures(), false};
    lose(server, place, end, weft::describe(error));
  }
}

void Servers::hear(int server, Place& place) {
  while (const auto message = place.running->link.next()) {
    const auto said = rank_link::decode<rank_link::ServerMessage>(*message);
    if (!said) continue;
    std::visit(rank_link::Cases{
                   [&](const rank_link::Serving&) { place.serves = place.ever_served = true; },
                   [&](const rank_link::Alone&) { place.replicated = false; },
                   [&](const rank_link::Replicated&) { note_copies(server, place); },
                   [&](const rank_link::ShardLost& shard) { note_lost(shard.value); }},
               *said);
  }
}

void Servers::note_copies(int server, Place& place) {
  place.replicated = true;
  if (std::exchange(place.was_lost, false))
    options_.note("each shard of " + server_name(server) + " has two copies again");
}

void Servers::note_lost(int shard) {
  if (failure_) return;
  const std::string text = " of shard " + std::to_string(shard) + " of the parameter server ";
  failure_ =
      options_.has_copies ? "both copies" + text + "are lost" : "the only copy" + text + "is lost";
}

void Servers::note_end(int server, Place& place, const ExitStatus& status, Time now) {
  hear(server, place);  // what it told before its end
  drop(place);
  place.restarts.ended(now);
  ServerEnd end{status, place.ever_served, options_.has_copies, place.restarts.failures(), false};
  for (const auto& [other, one] : servers_) end.other_given_up |= one.given_up;
  lose(server, place, end, status.describe());
}

void Servers::lose(int server, Place& place, const ServerEnd& end, const std::string& how) {
  const std::string text = server_name(server) + " is lost: " + how;
  place.was_lost = place.ever_served;
  const std::string often =
      "it has ended " + std::to_string(end.in_a_row) + " times in a row and is not started again";
  switch (act_on(end)) {
    case ServerAct::kStartAgain:
      options_.note(text + (end.has_copies && end.ever_served
                                ? "; its backup serves, and a new process becomes the backup"
                                : "; it is started again"));
      break;
    case ServerAct::kGiveUp:
      place.given_up = true;
      options_.note(text + "; " + often + "; the job goes on with the remaining copies");
      break;
    case ServerAct::kEndJob:
      place.given_up = true;
      if (failure_) break;
      failure_ = text;
      if (!end.ever_served) failure_ = server_name(server) + " cannot serve: " + how;
      if (end.ever_served && !end.has_copies) *failure_ += "; it had the only copy of its shard";
      if (end.in_a_row >= kMaxServerEnds) *failure_ += "; " + often;
      break;
  }
}

void Servers::drop(Place& place) {
  if (!place.running) return;
  place.running->out.finish();
  place.running->err.finish();
  options_.on_end(place.running->process.pid());
  place.running.reset();
  place.serves = place.replicated = false;
}

}  // namespace weft::launch::internal
