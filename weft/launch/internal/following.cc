// How the supervisor follows the job's plan on several nodes (membership.h): it runs the ranks that
// the plan places on this node, and reports how they are.
#include <sys/utsname.h>

#include <algorithm>
#include <charconv>
#include <csignal>
#include <cstdio>

#include "weft/base/error.h"
#include "weft/base/text/words.h"
#include "weft/launch/internal/meeting_point.h"
#include "weft/launch/internal/pipe.h"
#include "weft/launch/internal/report.h"
#include "weft/launch/internal/supervisor.h"

namespace weft::launch::internal {
namespace {

constexpr auto kFailuresCount = std::chrono::minutes(10);  // NodeReport::failures
constexpr std::size_t kLongestReason = 400;

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

RankPhase phase_of(EndKind kind) {
  switch (kind) {
    case EndKind::kDone: return RankPhase::kDone;
    case EndKind::kLeft: return RankPhase::kLeft;
    case EndKind::kLost: return RankPhase::kLost;
    case EndKind::kRefused: return RankPhase::kRefused;
    case EndKind::kFailed: break;
  }
  return RankPhase::kFailed;
}

}  // namespace

void Supervisor::begin_following() {
  const Job::ByPlan& plan = *job_.plan;
  out_of_memory_before_ = out_of_memory_kills();
  store_process_ = std::make_unique<StoreProcess>(guarding());
  JobStoreProcess::Options store;
  store.job = job_.run_id;
  store.secret_fd = secret_.get();
  store.nodes = plan.min_nodes;
  store.rendezvous = plan.rendezvous;
  if (plan.rendezvous.empty()) {
    MeetingPoint point = find_meeting_point(plan.endpoint_host, plan.endpoint_port);
    store.node = static_cast<int>(point.number);
    store.listener = std::move(point.listener);
    store.address = point.address;
    store.seeds = point.seeds;
  }
  following_ = std::make_unique<Following>();
  following_->store.emplace(std::move(store));
  AgentOptions agent;
  agent.socket = following_->store->socket();
  agent.job = job_.run_id;
  agent.policy = {.min_nodes = plan.min_nodes,
                  .max_nodes = job_.nodes,
                  .min_ranks = job_.min_ranks,
                  .max_ranks = job_.nodes * job_.local_world,
                  .max_replacements = job_.max_replacements,
                  .servers = job_.servers,
                  .server_backup = job_.server_backup};
  agent.join_limit = plan.join_limit;
  agent.last_call = plan.last_call;
  agent.alone_limit = plan.alone_limit;
  agent.is_etcd = !plan.rendezvous.empty();
  following_->agent.emplace(agent);
  following_->report.host = host_name();
  following_->report.slots = job_.local_world;
  situation_.plan.emplace();
  follow_at_ = follow();
}

int Supervisor::run_by_plan() {
  begin_following();
  watch();
  servers_.end();
  if (situation_.plan->away) return end_of_leaving();
  say_how_it_went();
  const JobPlan& plan = following_->orders.plan;
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    const auto& end = situation_.ranks[i];
    if (!end || end->status.ok() || end->told || end->let_go) continue;
    const std::string text = description_of(*end, false);
    if (plan.end.find(text) == std::string::npos)
      note("rank " + std::to_string(job_.rank(static_cast<int>(i))) + " ended: " + text);
  }
  if (!plan.end.empty()) {
    note(plan.end);
    return plan.end_code;
  }
  const auto failed = first_failure(situation_);
  if (failed && !situation_.ranks[static_cast<std::size_t>(*failed)]->let_go) {
    write_all(STDERR_FILENO, report(situation_));
    return situation_.ranks[static_cast<std::size_t>(*failed)]->status.code();
  }
  return plan.done ? 0 : stop_code();
}

// Does what the plan says now. Returns when to do so again, if nothing happens before.
std::optional<Time> Supervisor::follow() {
  const Time at = Deadline::Clock::now();
  std::optional<Time> next = following_->store->tend(at);
  const auto sooner = [&](std::optional<Time> time) {
    if (time) next = next ? std::min(*next, *time) : *time;
  };
  sooner(following_->agent->tend(at, [this](const agent::Message& message) { on_agent(message); }));
  drop_ranks();
  run_servers();
  if (!following_->orders.is_over() && !situation_.stop_sent) sooner(start_placed(at));
  sooner(make_report(at));
  following_->agent->tell(following_->report);
  return next;
}

void Supervisor::on_agent(const agent::Message& message) {
  Following& state = *following_;
  if (message.verb == "orders") return take(orders_of(message.value));
  if (message.verb == "alone")
    return note("this node cannot change the job's plan: " + message.value);
  if (message.verb == "lost") {
    for (Rank& rank : ranks_) rank.link.tell("lost", message.value);
  }
  if (message.verb == "back") return note("this node can change the job's plan again");
  if (message.verb == "fenced") {
    note("the other nodes went on without this node: its ranks end");
    state.orders.plan.ranks.clear();
    state.orders.plan.servers.clear();
    state.orders.node = -1;
  }
  // The store does not answer any more, and does not say when the other nodes have ended.
  if (message.verb == "over" && state.orders.is_over()) state.orders.plan.servers.clear();
  if (message.verb == "over" && !state.orders.is_over()) {
    const char* const text = message.value.c_str();
    int code = 0;
    const auto [end, error] = std::from_chars(text, text + message.value.size(), code);
    state.orders.plan.ranks.clear();
    state.orders.plan.servers.clear();
    state.orders.plan.end = std::string(end).substr(1);
    state.orders.plan.end_code = code;
    situation_.plan = Situation::Followed{.over = Deadline::Clock::now(), .stopped = true};
    state.left_alone = true;
  }
}

void Supervisor::take(NodeOrders orders) {
  Following& state = *following_;
  if (state.left_alone) return;
  for (const auto& [number, text] : orders.plan.notes) {
    // A node that comes late has not seen the beginning.
    if (number > state.last_note && state.orders.node >= 0) note(text);
    state.last_note = std::max(state.last_note, number);
  }
  state.orders = std::move(orders);
  const JobPlan& plan = state.orders.plan;
  if (plan.attempt != situation_.restarts) {
    resume_run_ = plan.run;
    situation_.restarts = plan.attempt;
    spares_.clear();
    servers_.end();
    situation_.servers_lost.reset();
  }
  situation_.plan->away = plan.leaving.contains(state.orders.node);
  situation_.replacements = plan.replacements;
  job_.node_rank = state.orders.node;
  if (state.orders.is_over()) {
    if (!situation_.plan->over) situation_.plan->over = Deadline::Clock::now();
    if (plan.is_stopped()) heed_stop();
    situation_.plan->done = plan.done;
    situation_.plan->stopped = plan.is_stopped();
    if (state.orders.all_left && !situation_.plan->all_left)
      situation_.plan->all_left = Deadline::Clock::now();
    situation_.plan->all_know = state.orders.all_know;
  }
  note_run(plan);
  if (plan.announcement.number <= state.announced || plan.announcement.ranks == 0) return;
  state.announced = plan.announcement.number;
  std::string text = std::to_string(plan.announcement.ranks);
  for (const int rank : plan.announcement.newcomers) text += " " + std::to_string(rank);
  for (Rank& rank : ranks_) rank.link.tell("ranks", text);
}

// The run, of which rank 0 tells the launcher of its own node.
void Supervisor::note_run(const JobPlan& plan) {
  if (plan.formed && attempt_began_ == Time{}) attempt_began_ = Deadline::Clock::now();
  if (!plan.run.empty()) {
    run_folder_ = plan.run;
    situation_.trained = true;
  }
  const bool known = plan.saved.folder == newest_checkpoint_ ||
                     plan.saved.serial <= following_->report.saved.serial;
  if (known) return;
  newest_checkpoint_ = plan.saved.folder;
  saved_ = Deadline::Clock::now();
}

// True if the plan wants the process that the place has, or had.
bool Supervisor::is_placed(std::size_t at) const {
  const auto& ranks = following_->orders.plan.ranks;
  const auto place = ranks.find(job_.rank(static_cast<int>(at)));
  return place != ranks.end() && place->second.incarnation == following_->slots[at].incarnation;
}

// Ends processes whose ranks are elsewhere now.
void Supervisor::drop_ranks() {
  const bool is_over = following_->orders.is_over() && !following_->left_alone;
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    // Ranks of a job that is over end by themselves, but nobody takes a newcomer any more.
    if (is_placed(i) || (is_over && following_->slots[i].phase >= RankPhase::kMember)) continue;
    following_->slots[i].dropped = true;
    if (!situation_.ranks[i]) {
      ranks_[i].process.signal(SIGKILL);
    } else {
      situation_.ranks[i]->let_go = true;
    }
  }
}

std::optional<Time> Supervisor::start_placed(Time at) {
  std::optional<Time> next;
  Following& state = *following_;
  const auto& placed = state.orders.plan.ranks;
  for (const auto& [rank, place] : placed) {
    const bool is_known = std::any_of(state.slots.begin(), state.slots.end(),
                                      [&, incarnation = place.incarnation](const Slot& slot) {
                                        return slot.incarnation == incarnation;
                                      });
    if (is_known) continue;
    const auto due = state.due.try_emplace(
        place.incarnation, place.tries == 0 ? at : at + kFirstBackOff * (1 << place.tries) / 2);
    if (at < due.first->second) {
      next = next ? std::min(*next, due.first->second) : due.first->second;
      continue;
    }
    // The first ranks of an attempt take the first places.
    const bool others_run = std::any_of(situation_.ranks.begin(), situation_.ranks.end(),
                                        [](const auto& end) { return !end; });
    const bool waits = place.first && others_run &&
                       std::any_of(state.slots.begin(), state.slots.end(),
                                   [](const Slot& slot) { return slot.dropped; });
    const auto slot = waits ? std::nullopt : free_slot();
    if (!slot || start_in(*slot, rank, place)) continue;
    const Time again = at + kLongestStartBackOff;
    state.due[place.incarnation] = again;
    next = next ? std::min(*next, again) : again;
  }
  return next;
}

std::optional<std::size_t> Supervisor::free_slot() const {
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    if (situation_.ranks[i] && !is_placed(i)) return i;
  }
  const bool has_room = static_cast<int>(ranks_.size()) < job_.local_world;
  return has_room ? std::optional(ranks_.size()) : std::nullopt;
}

// False: the machine cannot start a process now.
bool Supervisor::start_in(std::size_t slot, int rank, const Placement& place) {
  const int local = static_cast<int>(slot);
  Following& state = *following_;
  Job::ByPlan& plan = *job_.plan;
  const bool is_new = slot == ranks_.size();
  if (is_new) plan.ranks.push_back(rank);
  if (is_new) positions_.set_ranks(local + 1);
  const int before = std::exchange(plan.ranks[slot], rank);
  plan.here = std::max(static_cast<int>(state.orders.plan.ranks.size()), local + 1);
  plan.world = std::max({state.orders.world, plan.here, rank + 1});
  plan.nodes = state.orders.nodes;
  if (!place.first && spares_.has_ready())
    note("a spare of this node becomes rank " + std::to_string(rank));
  auto started = try_to_start(local, !place.first);
  if (!started) {
    plan.ranks[slot] = before;
    if (is_new) plan.ranks.pop_back();
    if (is_new) positions_.set_ranks(local);
    return false;
  }
  if (is_new) {
    state.slots.emplace_back();
    situation_.ranks.emplace_back(RankEnd{});
    ranks_.push_back(std::move(*started));
  } else {
    ranks_[slot] = std::move(*started);
  }
  state.slots[slot] = {.incarnation = place.incarnation};
  situation_.ranks[slot].reset();
  situation_.joining.erase(local);
  if (!place.first) situation_.joining.insert(local);
  return true;
}

// What a rank has told, for the report.
void Supervisor::note_phase(int local, const agent::Message& message) {
  Slot& slot = following_->slots[static_cast<std::size_t>(local)];
  if (message.verb == "joining") slot.phase = RankPhase::kWaiting;
  if (message.verb == "joined") slot.phase = RankPhase::kMember;
  if (message.verb == "folder" || message.verb == "run") following_->report.run = message.value;
  if (message.verb == "multiple") following_->report.usable = agent::usable_ranks_of(message.value);
  SavedCheckpoint& saved = following_->report.saved;
  if (message.verb == "saved")
    saved = {std::max(saved.serial, following_->orders.plan.saved.serial) + 1, message.value};
}

// How a rank of the plan is. `next`: when this changes, if nothing happens before.
RankReport Supervisor::state_of(std::size_t at, Time when, std::optional<Time>& next) {
  Slot& slot = following_->slots[at];
  if (!situation_.ranks[at]) return {slot.incarnation, slot.phase};
  const RankEnd& end = *situation_.ranks[at];
  const EndKind kind = kind_of(end);
  // The rank that is at fault may be on another node. Its end counts then.
  const Time known = end.when + policy_.survivor_grace;
  if (kind == EndKind::kFailed && when < known && !end.told) {
    next = next ? std::min(*next, known) : known;
    return {slot.incarnation, slot.phase};
  }
  if (kind == EndKind::kLost && !std::exchange(slot.counted, true))
    following_->failures.push_back(end.when);
  const bool out_of_memory = out_of_memory_kills() > out_of_memory_before_;
  return {slot.incarnation, phase_of(kind),
          description_of(end, out_of_memory).substr(0, kLongestReason), end.status.code()};
}

// Returns when the report changes, if nothing happens before.
std::optional<Time> Supervisor::make_report(Time at) {
  Following& state = *following_;
  NodeReport& report = state.report;
  std::optional<Time> next;
  bool running = false;
  report.ranks.clear();
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    running = running || !situation_.ranks[i];
    if (is_placed(i)) report.ranks[job_.rank(static_cast<int>(i))] = state_of(i, at, next);
  }
  std::erase_if(state.failures, [&](Time when) { return at - when > kFailuresCount; });
  report.failures = static_cast<int>(state.failures.size());
  report.replicated = servers_.replicated();
  report.servers_lost = situation_.servers_lost.value_or("").substr(0, kLongestReason);
  report_requests();
  report.left = (state.orders.is_over() || situation_.plan->away) && !running;
  report.knows_all_left = state.orders.all_left;
  return next;
}

// Answers `weft scale` when the job has the wanted number of ranks.
std::optional<std::string> Supervisor::answer_by_plan(int ranks) {
  Following& state = *following_;
  const JobPlan& plan = state.orders.plan;
  const int least = std::max(1, policy_.min_ranks), most = job_.nodes * job_.local_world;
  if (policy_.min_ranks == 0 && policy_.max_replacements == 0)
    return "the number of ranks of this job is fixed; start it with --nnodes MIN:MAX, "
           "--max-replacements or --min-ranks";
  if (ranks < least || ranks > most)
    return counted(ranks, "rank") + ": this job may have " + std::to_string(least) + " to " +
           std::to_string(most);
  if (!plan.usable.has(ranks)) return not_usable(ranks, plan.usable);
  if (plan.run.empty() || state.orders.is_over()) return "the job does not train yet, or it ends";
  if (state.report.wanted.ranks != ranks || state.report.wanted.serial < plan.wanted.serial)
    state.report.wanted = {std::max(milliseconds_since_1970(), plan.wanted.serial + 1), ranks};
  if (plan.wanted.serial < state.report.wanted.serial) return std::nullopt;
  if (state.orders.members == ranks) return "ok";
  return plan.never_joined < kMostLostNewcomers
             ? std::nullopt
             : std::optional<std::string>("the job keeps " + std::to_string(state.orders.members) +
                                          " ranks: new ranks ended before they joined");
}

}  // namespace weft::launch::internal
