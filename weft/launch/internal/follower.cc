// Makes the processes of this node what the membership says. All of it runs in the launcher's
// thread.
//
//   orders  ──> drop_ranks(), run_servers(), start_placed() ──> processes of this node
//   report  <── make_report() <──────────────────────────────── their states
//
// Orders and report are whole states, not changes. So nothing is lost if the agent is started
// again: it sends the whole orders again, and gets the whole report again.
//
// A slot (a local rank) has at most one process. Its incarnation names the placement of the
// membership that the process was started for, and no two placements share one:
//
//   the orders do not have the slot's incarnation    the process is killed
//   no slot has an incarnation of the orders         a process is started, after its back-off
//   both have it                                     the report says how the rank is
//
// A slot keeps its incarnation after its process has ended. So an end is reported until the
// membership has answered it, and no placement is started twice.
#include "weft/launch/internal/follower.h"

#include <sys/utsname.h>

#include <algorithm>
#include <csignal>
#include <cstdio>

#include "weft/base/error.h"
#include "weft/base/text/words.h"
#include "weft/launch/internal/meeting_point.h"
#include "weft/launch/internal/pipe.h"
#include "weft/launch/internal/report.h"

namespace weft::launch::internal {
namespace {

constexpr auto kFailuresCount = std::chrono::minutes(10);  // NodeReport::failures
constexpr auto kStartsFail = std::chrono::minutes(1);      // NodeReport::starts_fail

std::string host_name() {
  utsname name{};
  ::uname(&name);
  return name.nodename;
}

std::int64_t milliseconds_since_1970() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace

Follower::Follower(Node& node, Starter& starter, Departures& departures, Servers& servers)
    : node_(node), starter_(starter), departures_(departures), servers_(servers) {
  const Job::ByMembership& membership = *node_.job.membership;
  node_.note_out_of_memory();
  node_.store = std::make_unique<StoreProcess>(guarding());
  JobStoreProcess::Options store;
  store.job = node_.job.run_id;
  store.secret_fd = starter_.secret();
  store.nodes = membership.min_nodes;
  store.rendezvous = membership.rendezvous;
  if (membership.rendezvous.empty()) {
    MeetingPoint point = find_meeting_point(membership.endpoint_host, membership.endpoint_port);
    store.node = static_cast<int>(point.number);
    store.listener = std::move(point.listener);
    store.address = point.address;
    store.seeds = point.seeds;
  }
  store_.emplace(std::move(store));
  starter_.set_store(store_->socket());
  AgentOptions agent;
  agent.socket = store_->socket();
  agent.job = node_.job.run_id;
  agent.policy = {.min_nodes = membership.min_nodes,
                  .max_nodes = node_.job.nodes,
                  .min_ranks = node_.job.min_ranks,
                  .max_ranks = node_.job.nodes * node_.job.local_world,
                  .max_replacements = node_.job.max_replacements,
                  .servers = node_.job.servers,
                  .server_backup = node_.job.server_backup};
  agent.join_limit = membership.join_limit;
  agent.last_call = membership.last_call;
  agent.alone_limit = membership.alone_limit;
  agent.is_etcd = !membership.rendezvous.empty();
  agent_.emplace(agent);
  report_.host = host_name();
  report_.slots = node_.job.local_world;
  node_.situation.followed.emplace();
  follow();
}

// On nodes that meet, the store process of the launcher has no store: it only kills what a killed
// launcher leaves. So another one can take its place.
StoreProcess::Options Follower::guarding() const {
  StoreProcess::Options options;
  options.folder = starter_.folder_to_remove();
  return options;
}

void Follower::renew_guard() {
  const Time at = Deadline::Clock::now();
  if (at < renew_guard_at_) return;
  renew_guard_at_ = at + std::chrono::seconds(1);
  const auto ended = node_.store->poll();
  try {
    node_.store = std::make_unique<StoreProcess>(guarding());
  } catch (const Error&) {  // no process now
    return;
  }
  for (std::size_t i = 0; i < node_.ranks.size(); ++i) {
    if (!node_.situation.ranks[i]) node_.store->guard(node_.ranks[i].process.pid());
  }
  for (const pid_t group : starter_.spares().groups()) node_.store->guard(group);
  for (const pid_t group : servers_.groups()) node_.store->guard(group);
  node_.note("the process that cleans up after a killed launcher has ended: " + ended->describe() +
             "; a new one takes its place");
}

std::optional<int> Follower::end() const {
  const Membership& membership = orders_.membership;
  for (std::size_t i = 0; i < node_.ranks.size(); ++i) {
    const auto& end = node_.situation.ranks[i];
    if (!end || end->status.ok() || end->told || end->done_without) continue;
    const std::string text = description_of(*end, false);
    if (membership.end.find(text) == std::string::npos)
      node_.note("rank " + std::to_string(node_.job.rank(static_cast<int>(i))) + " ended: " + text);
  }
  if (membership.end.empty()) return std::nullopt;
  node_.note(membership.end);
  return membership.end_code;
}

void Follower::watch(std::vector<pollfd>& watched) const {
  watched.push_back({store_->pidfd(), POLLIN, 0});
  watched.push_back({agent_->link_fd(), POLLIN, 0});
}

bool Follower::others_can_go_on() const {
  const bool is_elastic = node_.policy.max_replacements > 0 || node_.policy.min_ranks > 0;
  return orders_.node >= 0 && is_elastic;
}

void Follower::follow() {
  const Time at = Deadline::Clock::now();
  std::optional<Time> next = store_->tend(at);
  const auto sooner = [&](std::optional<Time> time) {
    if (time) next = next ? std::min(*next, *time) : *time;
  };
  sooner(agent_->tend(at, [this](const AgentMessage& message) { on_agent(message); }));
  drop_ranks();
  run_servers();
  if (!orders_.is_over() && !node_.situation.stop_sent) sooner(start_placed(at));
  sooner(make_report(at));
  agent_->tell(report_);
  follow_at_ = next;
}

// Runs the parameter servers that the membership places on this node.
void Follower::run_servers() {
  std::set<int> wanted;
  for (const auto& [server, node] : orders_.membership.servers) wanted.insert(server);
  node_.situation.followed->serves = !wanted.empty();
  servers_.run(wanted, Deadline::Clock::now());
}

void Follower::on_agent(const AgentMessage& message) {
  std::visit(rank_link::Cases{
                 [](const NodeJoined&) {},  // the agent's process keeps it
                 [&](const NewOrders& said) { take(said.orders); },
                 [&](const rank_link::RanksLost& lost) { node_.tell_ranks(lost); },
                 [&](const StoreSilent& why) {
                   node_.note("this node cannot change the job's plan: " + why.value);
                 },
                 [&](const StoreBack&) { node_.note("this node can change the job's plan again"); },
                 [&](const Fenced&) {
                   node_.note("the other nodes went on without this node: its ranks end");
                   drop_placements();
                   orders_.node = -1;
                 },
                 [&](const Over& over) { end_alone(over); }},
             message);
}

void Follower::drop_placements() {
  orders_.membership.ranks.clear();
  orders_.membership.servers.clear();
}

// The store does not answer any more, and does not say when the other nodes have ended.
void Follower::end_alone(const Over& over) {
  if (orders_.is_over()) return orders_.membership.servers.clear();
  drop_placements();
  orders_.membership.end = over.why;
  orders_.membership.end_code = over.code;
  node_.situation.followed = Situation::Followed{.over = Deadline::Clock::now(), .stopped = true};
  left_alone_ = true;
}

void Follower::take(NodeOrders orders) {
  if (left_alone_) return;
  for (const auto& [number, text] : orders.membership.notes) {
    // A node that comes late has not seen the beginning.
    if (number > last_note_ && orders_.node >= 0) node_.note(text);
    last_note_ = std::max(last_note_, number);
  }
  orders_ = std::move(orders);
  const Membership& membership = orders_.membership;
  // Spares and servers belong to an attempt: their environment has its number.
  if (membership.attempt != node_.situation.restarts) {
    node_.resume_run = membership.run;
    node_.situation.restarts = membership.attempt;
    starter_.spares().clear();
    servers_.end();
    node_.situation.servers_lost.reset();
  }
  node_.situation.followed->away = membership.leaving.contains(orders_.node);
  node_.situation.job.replacements = membership.replacements;
  node_.job.node_rank = orders_.node;
  node_.positions.header().elsewhere = orders_.elsewhere;
  if (orders_.is_over()) take_end(membership);
  note_run(membership);
  if (membership.announcement.number <= announced_ || membership.announcement.ranks == 0) return;
  announced_ = membership.announcement.number;
  node_.announce(membership.announcement.ranks, membership.announcement.newcomers);
}

void Follower::take_end(const Membership& membership) {
  Situation::Followed& followed = *node_.situation.followed;
  if (!followed.over) followed.over = Deadline::Clock::now();
  if (membership.is_stopped()) departures_.heed(membership.stop);
  followed.done = membership.done;
  followed.stopped = membership.is_stopped();
  if (orders_.all_left && !followed.all_left) followed.all_left = Deadline::Clock::now();
  followed.all_know = orders_.all_know;
  followed.has_members = orders_.has_members;
}

// Takes the run folder and the newest checkpoint from the membership. Rank 0 has told them to the
// launcher of its own node only.
void Follower::note_run(const Membership& membership) {
  if (membership.formed && node_.attempt_began == Time{})
    node_.attempt_began = Deadline::Clock::now();
  if (!membership.run.empty()) {
    node_.run_folder = membership.run;
    node_.situation.trained = true;
  }
  const bool known = membership.saved.folder == departures_.newest_checkpoint() ||
                     membership.saved.serial <= report_.saved.serial;
  if (!known) departures_.on_checkpoint(membership.saved.folder);
}

// True if the membership wants the process that the place has, or had.
bool Follower::is_placed(std::size_t at) const {
  const auto& ranks = orders_.membership.ranks;
  const auto place = ranks.find(node_.job.rank(static_cast<int>(at)));
  return place != ranks.end() && place->second.incarnation == slots_[at].incarnation;
}

// Ends processes whose ranks are elsewhere now.
void Follower::drop_ranks() {
  const bool is_over = orders_.is_over() && !left_alone_;
  for (std::size_t i = 0; i < node_.ranks.size(); ++i) {
    // When the job is over, its ranks end by themselves. A new rank that has not joined would wait.
    if (is_placed(i) || (is_over && slots_[i].phase >= RankPhase::kMember)) continue;
    slots_[i].dropped = true;
    if (!node_.situation.ranks[i]) {
      node_.ranks[i].process.signal(SIGKILL);
    } else {
      node_.situation.ranks[i]->done_without = true;
    }
  }
}

std::optional<Time> Follower::start_placed(Time at) {
  std::optional<Time> next;
  const auto& placed = orders_.membership.ranks;
  for (const auto& [rank, place] : placed) {
    const bool is_known = std::any_of(slots_.begin(), slots_.end(),
                                      [&, incarnation = place.incarnation](const Slot& slot) {
                                        return slot.incarnation == incarnation;
                                      });
    if (is_known) continue;
    const auto due = due_.try_emplace(place.incarnation, at + back_off(place.tries));
    if (at < due.first->second) {
      next = next ? std::min(*next, due.first->second) : due.first->second;
      continue;
    }
    const auto slot = waits_for_others(place) ? std::nullopt : free_slot();
    if (!slot || start_in(*slot, rank, place)) continue;
    const Time again = at + kMaxStartBackOff;
    due_[place.incarnation] = again;
    next = next ? std::min(*next, again) : again;
  }
  return next;
}

// The first ranks of an attempt take the first places, once those of the attempt before have ended.
bool Follower::waits_for_others(const Placement& place) const {
  const auto& ends = node_.situation.ranks;
  return place.first &&
         std::any_of(ends.begin(), ends.end(), [](const auto& end) { return !end; }) &&
         std::any_of(slots_.begin(), slots_.end(), [](const Slot& slot) { return slot.dropped; });
}

std::optional<std::size_t> Follower::free_slot() const {
  for (std::size_t i = 0; i < node_.ranks.size(); ++i) {
    if (node_.situation.ranks[i] && !is_placed(i)) return i;
  }
  const bool has_room = static_cast<int>(node_.ranks.size()) < node_.job.local_world;
  return has_room ? std::optional(node_.ranks.size()) : std::nullopt;
}

// False: the machine cannot start a process now.
bool Follower::start_in(std::size_t slot, int rank, const Placement& place) {
  const int local = static_cast<int>(slot);
  Job::ByMembership& membership = *node_.job.membership;
  // The environment of the process has its rank and the sizes of the job. So these are set first,
  // and set back if it does not start.
  const bool is_new = slot == node_.ranks.size();
  if (is_new) membership.ranks.push_back(rank);
  if (is_new) node_.positions.set_ranks(local + 1);
  const int before = std::exchange(membership.ranks[slot], rank);
  membership.here = std::max(static_cast<int>(orders_.membership.ranks.size()), local + 1);
  membership.world = std::max({orders_.world, membership.here, rank + 1});
  membership.nodes = orders_.nodes;
  if (!place.first && starter_.spares().has_ready())
    node_.note("a spare of this node becomes rank " + std::to_string(rank));
  auto started = starter_.try_to_start(local, !place.first);
  if (!started) {
    membership.ranks[slot] = before;
    if (is_new) membership.ranks.pop_back();
    if (is_new) node_.positions.set_ranks(local);
    return false;
  }
  if (is_new) slots_.emplace_back();
  slots_[slot] = {.incarnation = place.incarnation};
  node_.place(slot, std::move(*started));
  node_.situation.newcomers.erase(local);
  if (!place.first) node_.situation.newcomers[local] = RankPhase::kStarting;
  return true;
}

void Follower::note_phase(int local, const rank_link::RankMessage& message) {
  Slot& slot = slots_[static_cast<std::size_t>(local)];
  SavedCheckpoint& saved = report_.saved;
  std::visit(
      rank_link::Cases{[&](const rank_link::Joining&) { slot.phase = RankPhase::kWaiting; },
                       [&](const rank_link::Joined&) { slot.phase = RankPhase::kMember; },
                       [&](const rank_link::RunFolder& folder) { report_.run = folder.value; },
                       [&](const rank_link::RunBegun& run) { report_.run = run.value; },
                       [&](const rank_link::Usable& usable) { report_.usable = usable.ranks; },
                       [&](const rank_link::CheckpointSaved& folder) {
                         // Rank 0 may have been on another node before, so the serial goes on from
                         // that of the membership.
                         const auto known = std::max(saved.serial, orders_.membership.saved.serial);
                         saved = {known + 1, folder.value};
                       },
                       [](const auto&) {}},
      message);
}

// The state of a rank, for the report. `next`: when it changes, if nothing happens before.
RankReport Follower::state_of(std::size_t at, Time when, std::optional<Time>& next) {
  Slot& slot = slots_[at];
  if (!node_.situation.ranks[at]) return {slot.incarnation, slot.phase};
  const RankEnd& end = *node_.situation.ranks[at];
  const RankPhase phase = phase_of(end);
  // The rank that is at fault may be on another node. Its end counts then.
  const Time known = end.when + node_.policy.survivor_grace;
  if (phase == RankPhase::kFailed && when < known && !end.told) {
    next = next ? std::min(*next, known) : known;
    return {slot.incarnation, slot.phase};
  }
  if (phase == RankPhase::kLost && !std::exchange(slot.counted, true))
    failures_.push_back(end.when);
  return {
      slot.incarnation, phase,
      description_of(end, node_.was_out_of_memory()).substr(0, longest_reason(node_.ranks.size())),
      end.status.code()};
}

// Returns when the report changes, if nothing happens before.
std::optional<Time> Follower::make_report(Time at) {
  NodeReport& report = report_;
  std::optional<Time> next;
  bool running = false;
  report.ranks.clear();
  for (std::size_t i = 0; i < node_.ranks.size(); ++i) {
    running = running || !node_.situation.ranks[i];
    if (is_placed(i)) report.ranks[node_.job.rank(static_cast<int>(i))] = state_of(i, at, next);
  }
  std::erase_if(failures_, [&](Time when) { return at - when > kFailuresCount; });
  report.failures = static_cast<int>(failures_.size());
  const Time forgotten = node_.situation.last_end + kStartsFail;
  report.starts_fail = node_.situation.failed_starts > 0 && at < forgotten;
  if (report.starts_fail) next = next ? std::min(*next, forgotten) : forgotten;
  report.replicated = servers_.replicated();
  report.servers_lost = node_.situation.servers_lost.value_or("").substr(0, longest_reason(1));
  if (!orders_.is_over()) departures_.report_to(report_, orders_.node);
  report.left = (orders_.is_over() || node_.situation.followed->away) && !running;
  report.knows_all_left = orders_.all_left;
  return next;
}

// Answers `weft scale` when the job has the wanted number of ranks.
std::optional<std::string> Follower::answer(int ranks) {
  const Membership& membership = orders_.membership;
  const int least = std::max(1, node_.policy.min_ranks),
            most = node_.job.nodes * node_.job.local_world;
  if (node_.policy.min_ranks == 0 && node_.policy.max_replacements == 0)
    return "the number of ranks of this job is fixed; start it with --nnodes MIN:MAX, "
           "--max-replacements or --min-ranks";
  if (ranks < least || ranks > most)
    return counted(ranks, "rank") + ": this job may have " + std::to_string(least) + " to " +
           std::to_string(most);
  if (!membership.usable.has(ranks)) return not_usable(ranks, membership.usable);
  if (membership.run.empty() || orders_.is_over()) return "the job does not train yet, or it ends";
  // The newest request of all nodes shall count, also if their clocks differ.
  if (report_.wanted.ranks != ranks || report_.wanted.serial < membership.wanted.serial)
    report_.wanted = {std::max(milliseconds_since_1970(), membership.wanted.serial + 1), ranks};
  if (membership.wanted.serial < report_.wanted.serial) return std::nullopt;
  if (orders_.members == ranks) return "ok";
  return membership.never_joined < kMaxNeverJoined ? std::nullopt
                                                   : std::optional(why_it_keeps(orders_.members));
}

}  // namespace weft::launch::internal
