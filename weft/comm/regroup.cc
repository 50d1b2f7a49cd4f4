// How the survivors of a group form the next one. One thread of each rank runs this:
//
//   end_all()       The calls of this rank end: it writes to no tensor of another rank any more.
//   agree(epoch)    It arrives in the store and waits for the list of members (rendezvous.h).
//   leave_behind()  A rank of this host that is not on the list may be stopped in the middle of a
//                   write into this rank's tensors: this rank moves its memory away from it.
//   form(epoch)     The members connect, and settle whether all of them are connected.
//                   If not: the next epoch, from agree() on.
//
// All ranks try the same epochs in the same order. A rank that is late finds the list of an epoch
// decided. If it is on it, it takes part, else the group has gone on without it.
//
// A newcomer (join_group()) goes through the same epochs from the other side: it arrives in each
// until a list has its name, and decides nothing. Only newcomers that replace all ranks make the
// list themselves, since no survivor can come.
//
// Who is awaited: all members of the last attempt, without those that are known to be lost. Sources
// of this knowledge: this rank's own error (`lost`), the sockets of this host (`has_ended_`), the
// launcher (lost_ranks()), and the peer that this rank could not reach in the last attempt.
#include "weft/comm/init.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>

#include "weft/base/deadline.h"
#include "weft/base/fault/failpoint.h"
#include "weft/base/json/error_file.h"
#include "weft/base/log.h"
#include "weft/comm/internal/job_texts.h"
#include "weft/comm/internal/meeting.h"
#include "weft/comm/internal/regroup_data.h"
#include "weft/comm/internal/rendezvous.h"
#include "weft/net/memory/heap.h"
#include "weft/net/memory/host.h"
#include "weft/observe/position/position.h"

namespace weft::comm {
namespace {

using internal::Arrival;
using internal::Awaited;
using internal::RegroupData;
using internal::Rendezvous;

constexpr auto kLookAgain = std::chrono::milliseconds(5);

// Aborts pending operations and waits until they have ended, so that this rank no longer touches
// tensors of other ranks. Returns the rank that is known to be lost, or -1.
int end_all(const Group& group, const std::vector<int>& job_ranks) {
  group.stop();
  int lost = -1;
  const auto rank_of = [&](int job) {  // errors name ranks of the job
    const auto found = std::find(job_ranks.begin(), job_ranks.end(), job);
    return found == job_ranks.end() ? job : static_cast<int>(found - job_ranks.begin());
  };
  const auto drain = [&](const Group& part) {
    try {
      part.barrier();
    } catch (const Error& error) {
      if (&part == &group && error.code() == Errc::kPeerLost) lost = rank_of(error.context().peer);
    } catch (const std::exception&) {
      // The message by which another backend reports an abort.
    }
  };
  if (const HostSplit* split = group.split(); split != nullptr) {
    drain(split->local);
    if (split->across) drain(*split->across);
  }
  if (group.size() > 1) drain(group);
  return lost;
}

int place_of(const std::vector<Arrival>& members, const std::string& name) {
  const auto found = std::find_if(members.begin(), members.end(),
                                  [&](const Arrival& who) { return who.name == name; });
  return found == members.end() ? -1 : static_cast<int>(found - members.begin());
}

// State of a process between one group and the next.
class Regrouping {
 public:
  // `has_ended`: true for a rank of the former group whose process is known to have ended. Null:
  // for none.
  using HasEnded = std::function<bool(const std::string& name)>;
  Regrouping(const RegroupData& regroup_data, Arrival me, Awaited awaited,
             HasEnded has_ended = nullptr)
      : regroup_data_(regroup_data),
        me_(std::move(me)),
        awaited_(std::move(awaited)),
        has_ended_(std::move(has_ended)),
        written_(regroup_data.written) {}

  // This attempt, with the keys that this process sets.
  Rendezvous attempt(std::uint32_t epoch) {
    auto& written = written_[epoch];
    if (!written) written = std::make_shared<internal::WrittenKeys>();
    return Rendezvous(regroup_data_.store, epoch, written);
  }

  // Called once, when a member has been awaited for a quarter of the wait: it may be in a call of
  // the former group. Earlier, it may still receive the end of the last call of all ranks.
  void tell_late_members(std::function<void()> tell) { tell_ = std::move(tell); }

  // Returns the members of the next epoch. Waits until `limit` instead of `wait` while too few are
  // there and processes in place of lost ranks are coming. Throws kAborted if the members have
  // continued without this rank.
  std::vector<Arrival> agree(std::uint32_t epoch, std::chrono::milliseconds wait, Deadline limit) {
    Rendezvous at = attempt(epoch);
    failpoint("regroup.begin");
    if (!at.decided()) at.arrive(me_);
    failpoint("regroup.arrived");
    const auto deadline = Deadline::in(wait), soon = Deadline::in(wait / 4);
    observe::WaitScope shown("regroup", -1);
    for (;;) {
      auto members = at.decided();
      if (!members) {
        if (has_ended_) {
          std::erase_if(awaited_.names, [&](const auto& one) { return has_ended_(one.first); });
        }
        if (tell_ && soon.passed()) std::exchange(tell_, nullptr)();
        const auto lost = internal::lost_ranks(*regroup_data_.store);
        const auto left = internal::without(awaited_, lost.gone);
        const auto arrived = at.arrived();
        const bool late = deadline.passed() && (limit.passed() || !internal::is_worth_waiting(
                                                                      arrived, left, lost.coming));
        shown.set_peer(internal::missing_rank(arrived, left));
        const auto list = internal::agree(arrived, left, late);
        if (list) members = at.decide(*list);
      }
      if (members && place_of(*members, me_.name) < 0) left_out(epoch, *members);
      if (members) return *members;
      std::this_thread::sleep_for(kLookAgain);
    }
  }

  // Returns the group of these members, or nullopt if it could not be formed. The next attempt does
  // not wait for the member that failed.
  std::optional<Group> form(std::uint32_t epoch, const std::vector<Arrival>& members,
                            std::chrono::milliseconds wait) {
    const int rank = place_of(members, me_.name), size = static_cast<int>(members.size());
    Rendezvous at = attempt(epoch);
    auto next = std::make_shared<RegroupData>(regroup_data_);
    next->options.epoch = epoch;
    next->options.connect_timeout = wait;
    const auto formed = std::make_shared<std::atomic<bool>>(false);
    const auto lost_rank = watch(epoch, members, formed);
    next->options.lost_rank = lost_rank;
    next->names.clear();
    next->former.clear();
    next->options.job_ranks.clear();
    for (const auto& member : members) {
      next->names.push_back(member.name);
      next->former.push_back(member.was);
      next->options.job_ranks.push_back(member.job);
    }
    auto& jobs = next->options.job_ranks;
    const std::set<int> different(jobs.begin(), jobs.end());
    // Without a distinct rank by the launcher for each member, errors name ranks of the group.
    const bool same = jobs == internal::all_ranks(size);  // of the job and of the group
    if (same || different.size() < jobs.size() || *different.begin() < 0) jobs.clear();
    awaited_.names.clear();
    awaited_.jobs.clear();
    awaited_.newcomers.clear();
    for (const auto& member : members) {
      awaited_.names.emplace(member.name, member.job);
      awaited_.jobs.insert(member.job);
    }
    failpoint("regroup.decided");
    c10::intrusive_ptr<c10d::Backend> backend;
    try {
      backend = make_backend(at.meeting_place(), rank, size, next->options);
      failpoint("regroup.connected");
      at.ready(rank);
      failpoint("regroup.ready");
      if (at.settle(at.all_ready(size, wait, lost_rank))) {
        formed->store(true);
        forget_failure();
        erase_old_keys(epoch);
        next->written = written_;
        return Group(std::move(backend), "world", std::move(next));
      }
    } catch (const Error& error) {
      // Without a peer, this process itself has run out of something.
      const bool is_own = error.code() == Errc::kUnavailable && error.context().peer < 0;
      if (error.code() == Errc::kBadConfig || error.code() == Errc::kInvalidArgument || is_own)
        throw;
      log_warn("epoch " + std::to_string(epoch) +
               " of the group could not be formed: " + error.message());
      const int lost = error.context().peer;
      if (lost >= 0 && lost < size && lost != rank) {
        at.report_lost(lost);
        awaited_.names.erase(next->names[static_cast<std::size_t>(lost)]);
      }
      at.settle(false);
    }
    return std::nullopt;
  }

 private:
  // Ranks of the former group may still read its keys, but not those of groups before it.
  void erase_old_keys(std::uint32_t formed) {
    while (!written_.empty() && written_.begin()->first + 2 <= formed) {
      const auto& [epoch, keys] = *written_.begin();
      keys->erase_from(regroup_data_.store, epoch);
      written_.erase(written_.begin());
    }
  }

  // A function that names a member which is lost: reported by another one, replaced by its
  // launcher, or never to be replaced. Once `formed` is true, the members notice the end of a peer
  // themselves (RelatedGroups::loss()), and the function throws kAborted if one of them has noticed
  // it.
  std::function<std::optional<int>()> watch(
      std::uint32_t epoch, const std::vector<Arrival>& members,
      const std::shared_ptr<const std::atomic<bool>>& formed) const {
    // Used only while the group forms, by the thread that forms it, so it needs no lock.
    const auto known = std::make_shared<std::vector<int>>();  // ranks that newcomers asked for
    const Rendezvous at(regroup_data_.store, epoch), next(regroup_data_.store, epoch + 1);
    return [at, next, members, formed, known, store = regroup_data_.store]() -> std::optional<int> {
      if (formed->load() && is_begun(next)) throw given_up();
      try {
        if (formed->load()) return internal::lost_rank(*at.meeting_place());
        if (const auto lost = at.lost(static_cast<int>(members.size()))) return lost;
        for (const int job : internal::newcomers_since(*store, known->size()))
          known->push_back(job);
        if (const auto lost = internal::replaced_member(members, *known)) return lost;
        const auto gone = internal::lost_ranks(*store).gone;
        for (std::size_t rank = 0; rank < members.size(); ++rank) {
          if (members[rank].job >= 0 && gone.contains(members[rank].job))
            return static_cast<int>(rank);
        }
      } catch (const std::exception&) {  // the store is gone: the next exchange reports it
      }
      return std::nullopt;
    };
  }

  static bool is_begun(const Rendezvous& next) {
    try {
      return next.has_survivor();
    } catch (const std::exception&) {
      return false;  // the store is gone: the next exchange reports it
    }
  }

  static Error given_up() {
    return Error(
        Errc::kAborted,
        "another rank has given up this group, because a rank is lost, and forms the next");
  }

  [[noreturn]] void left_out(std::uint32_t epoch, const std::vector<Arrival>& members) const {
    throw Error(Errc::kAborted,
                "the group continued without this rank, which did not join in time: epoch " +
                    std::to_string(epoch) + " has " + std::to_string(members.size()) +
                    " ranks; end this process, or call join_group()",
                {"regroup", me_.was});
  }

  const RegroupData regroup_data_;
  const Arrival me_;
  Awaited awaited_;
  const HasEnded has_ended_;
  std::map<std::uint32_t, std::shared_ptr<internal::WrittenKeys>> written_;
  std::function<void()> tell_;
};

// A rank of this host that is left out of the group may still be alive, stopped while it writes
// into this rank's tensors.
// `leaving_from`: ranks from this one on leave the job on purpose and write no more.
void leave_behind(const Group::HostRanks& neighbors, const RegroupData& regroup_data,
                  const std::vector<Arrival>& members, int leaving_from) {
  if (neighbors.host == nullptr || net::process_heap() == nullptr) return;
  for (std::size_t local = 0; local < neighbors.ranks.size(); ++local) {
    const int rank = neighbors.ranks[local];
    if (place_of(members, regroup_data.names[static_cast<std::size_t>(rank)]) >= 0 ||
        (leaving_from >= 0 && rank >= leaving_from) ||
        neighbors.host->has_ended(static_cast<int>(local)))
      continue;
    log_warn("rank " + std::to_string(rank) +
             " is left out of the group but still alive: this rank moves its memory so that it "
             "cannot be written");
    net::process_heap()->renew();
    return;
  }
}

// Groups of one job would use the same keys.
void require_no_other(const RegroupData& regroup_data) {
  const int number = regroup_data.number;
  WEFT_REQUIRE(number < 0 || internal::group_that_regroups(*regroup_data.store, number) == number,
               "regroup: another group of weft::init() has formed again, and only one group of a "
               "job can; regroup that one, or make further groups from it by duplicate()");
}

}  // namespace

namespace internal {

Group regroup(const Group& group, const RegroupData& regroup_data, const RegroupOptions& options) {
  if (regroup_data.through_mpi) {
    throw Error(
        Errc::kBadConfig,
        "a group that met through MPI cannot regroup, since MPI's world neither shrinks nor grows "
        "and has no store; start the ranks with weft run, or set MASTER_ADDR to rank 0's host",
        {"regroup", group.rank()});
  }
  WEFT_REQUIRE(regroup_data.store,
               "this group cannot regroup: make it by weft::init() with more than one rank, or by "
               "form_group()");
  WEFT_REQUIRE(options.at_least >= 1 && (options.size == 0 || options.size >= options.at_least),
               "regroup: at_least must be at least 1, and size must be 0 or at least at_least");
  const observe::ActivityScope activity(observe::Activity::kRecovery);
  try {
    const auto deadline = Deadline::in(bounded_timeout(options.timeout));
    const auto wait = bounded_timeout(options.wait);
    require_no_other(regroup_data);
    // The error of the last call often names the lost rank, which is then not awaited.
    const int lost = end_all(group, regroup_data.options.job_ranks);
    const Group::HostRanks neighbors = group.host_ranks();
    Awaited awaited{{}, options.size, options.at_least, options.keep_ranks};
    const auto& jobs = regroup_data.options.job_ranks;
    for (std::size_t rank = 0; rank < regroup_data.names.size(); ++rank) {
      if (options.leaving_from >= 0 && static_cast<int>(rank) >= options.leaving_from) break;
      const int job = jobs.empty() ? static_cast<int>(rank) : jobs[rank];
      awaited.names.emplace(regroup_data.names[rank], job);
      awaited.jobs.insert(job);
    }
    awaited.newcomers.insert(options.newcomers.begin(), options.newcomers.end());
    if (lost >= 0 && lost < group.size())
      awaited.names.erase(regroup_data.names[static_cast<std::size_t>(lost)]);
    const auto has_ended = [&](const std::string& name) {
      for (std::size_t local = 0; local < neighbors.ranks.size(); ++local) {
        if (regroup_data.names[static_cast<std::size_t>(neighbors.ranks[local])] == name)
          return neighbors.host->has_ended(static_cast<int>(local));
      }
      return false;
    };
    Regrouping regrouping(regroup_data,
                          {regroup_data.names[static_cast<std::size_t>(group.rank())], group.rank(),
                           regroup_data.job_rank},
                          awaited, has_ended);
    regrouping.tell_late_members([&group] {
      group.abort(Error(Errc::kAborted,
                        "rank " + std::to_string(group.rank()) + " waits for the next group"));
    });
    for (std::uint32_t epoch = regroup_data.options.epoch + 1; !deadline.passed(); ++epoch) {
      const auto members = regrouping.agree(epoch, wait, deadline);
      // Only at the first list: a rank that has arrived once has ended its calls, and writes no
      // more.
      if (epoch == regroup_data.options.epoch + 1)
        leave_behind(neighbors, regroup_data, members, options.leaving_from);
      if (auto formed = regrouping.form(epoch, members, wait)) return *formed;
    }
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw internal::store_gone(error, {"regroup", group.rank()});
  }
  throw Error(Errc::kTimeout,
              "no group could be formed within " + std::to_string(options.timeout.count()) +
                  " ms; raise RegroupOptions::timeout, or restart from the last checkpoint",
              {"regroup", group.rank()});
}

}  // namespace internal

namespace {

std::shared_ptr<RegroupData> first_regroup_data(c10::intrusive_ptr<c10d::Store> store, int rank,
                                                int size, const BackendOptions& options) {
  auto regroup_data =
      std::make_shared<RegroupData>(RegroupData{std::move(store), options, {}, {}, false, rank});
  for (int peer = 0; peer < size; ++peer) regroup_data->names.push_back(std::to_string(peer));
  return regroup_data;
}

}  // namespace

c10::intrusive_ptr<c10d::Store> internal::place_of_group(
    int number, const c10::intrusive_ptr<c10d::Store>& store) {
  if (number == 0) return store;
  return c10::make_intrusive<c10d::PrefixStore>("again/" + std::to_string(number), store);
}

Group internal::form_group_number(int number, c10::intrusive_ptr<c10d::Store> store, int rank,
                                  int size, const BackendOptions& options) {
  const auto place = place_of_group(number, store);
  try {
    internal::compare_at_start(place, rank, size, options);
  } catch (const Error& error) {
    if (error.code() == Errc::kBadConfig || error.code() == Errc::kTimeout)
      internal::tell_failure(*place, rank, error);
    throw;
  }
  auto backend = make_backend(place, rank, size, options);
  if (rank == 0 && place != store) internal::set_texts(*store, options);
  auto regroup_data = first_regroup_data(std::move(store), rank, size, options);
  regroup_data->number = number;
  return Group(std::move(backend), "world", std::move(regroup_data));
}

Group form_group(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                 const BackendOptions& options) {
  return internal::form_group_number(0, std::move(store), rank, size, options);
}

Group regroupable(c10::intrusive_ptr<c10d::Backend> backend, c10::intrusive_ptr<c10d::Store> store,
                  const BackendOptions& options) {
  const int rank = backend->getRank(), size = backend->getSize();
  internal::compare_at_start(store, rank, size, options);
  return Group(std::move(backend), "world",
               first_regroup_data(std::move(store), rank, size, options));
}

Group join_group(c10::intrusive_ptr<c10d::Store> store, const BackendOptions& options,
                 std::chrono::milliseconds wait, int rank, int world) {
  const auto deadline = Deadline::in(bounded_timeout(wait));
  if (world > 0) {
    // Ranks may wait for this one to meet the first time, which it cannot any more.
    store->compareSet(internal::kLostKey, "", std::to_string(rank));
    if (rank == 0) internal::leave_texts(*store, options);
  }
  internal::compare_with_job(*store, options, deadline);
  const Arrival me{internal::name_of_newcomer(*store, rank), -1, rank};
  Regrouping regrouping({store, options, {}, {}, false, rank, -1}, me, {});
  std::uint32_t epoch = options.epoch + 1;
  bool arrived = false;
  while (!deadline.passed()) {
    Rendezvous at = regrouping.attempt(epoch);
    const auto members = at.decided();
    if (!members) {
      if (!arrived) {
        failpoint("regroup.begin");
        at.arrive(me);
        failpoint("regroup.arrived");
      }
      arrived = true;
      const auto alone =
          internal::newcomers_alone(at.arrived(), internal::lost_ranks(*store).gone, world);
      if (alone) {
        internal::group_that_regroups(*store, 0);  // not a later one
        at.decide(*alone);
      } else {
        std::this_thread::sleep_for(kLookAgain);
      }
      continue;
    }
    if (place_of(*members, me.name) >= 0) {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline.left());
      if (auto formed =
              regrouping.form(epoch, *members, std::max(left, std::chrono::milliseconds(1))))
        return *formed;
    }
    ++epoch;
    arrived = false;
  }
  throw Error(Errc::kTimeout,
              "no group admitted this process within " + std::to_string(wait.count()) +
                  " ms; check that the ranks of the group call regroup()",
              {"join"});
}

}  // namespace weft::comm
