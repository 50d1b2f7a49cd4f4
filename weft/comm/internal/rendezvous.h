// How the ranks of a failed group agree, through the store, on the members of the next group. Each
// attempt has its own epoch:
//
//   arrive     each rank leaves its name; names stay the same through all epochs
//   agree      the first list of members in the store is valid for all (compare and set); ranks
//              that are not on it are left out
//   form       the members connect
//   settle     "formed" if all members connected, else "failed"; again the first entry in the store
//              is valid for all, so that no member continues with a group that another one has
//              given up
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "weft/comm/group.h"

namespace c10d {
class Store;
}

namespace weft::comm::internal {

// Key, in the store of the job, for what the launcher says of lost ranks: "3 " it will not be
// replaced, "+3 " it was started again all the same, "*3 " a process is started in its place, "=3 "
// that process has joined the others.
constexpr const char* kGoneKey = "regroup/gone";

// Ranks by the launcher.
struct LostRanks {
  std::set<int> gone;    // not awaited
  std::set<int> coming;  // a process starts in their place, and has not joined the others yet
};
LostRanks lost_ranks(c10d::Store& store);

struct Arrival {
  std::string name;  // one word
  int was = -1;      // its rank in the previous group; -1: a newcomer
  int job = -1;      // its rank by the launcher, which a newcomer asks for; -1: any
  bool operator==(const Arrival&) const = default;
};

// The name of the next newcomer of the job, which sorts by the time of joining. Others learn that
// it asks for the rank `job` by the launcher, so that they no longer wait for an older process of
// that rank.
std::string name_of_newcomer(c10d::Store& store, int job);
// A rank below `world` that was lost and that no process has replaced. Does not find a rank whose
// replacement is lost, unless the launcher gives it up. None if the store is gone.
std::optional<int> unreplaced_rank(c10d::Store& store, int world);
// The number of the one group of the job that forms again: `number`, or that of an earlier call.
int group_that_regroups(c10d::Store& store, int number);
// By number, from 1: the rank by the launcher that each newcomer asked for.
std::vector<int> newcomers_since(c10d::Store& store, std::size_t number);
// The first member that a newcomer has replaced: it asks for the same rank by the launcher, and
// came later. `newcomers`: the ranks that newcomers 1, 2, … asked for. A pure function.
std::optional<int> replaced_member(const std::vector<Arrival>& members,
                                   const std::vector<int>& newcomers);

// The ranks that an attempt waits for, and the limit of the wait.
struct Awaited {
  // Members of the last attempt that may still be alive, each with its rank by the launcher (-1:
  // unknown).
  std::map<std::string, int> names;
  int size = 0, at_least = 1;    // as RegroupOptions
  bool keep_ranks = false;       // as RegroupOptions
  std::set<int> jobs = {};       // ranks by the launcher of all members, also of dead ones
  std::set<int> newcomers = {};  // as RegroupOptions
  bool too_few = false;          // so many are gone that at_least cannot come
};

// Returns the members in the order of their new ranks: survivors in their previous order, then
// newcomers in the order of their names, with keep_ranks those that replace a member first; or with
// keep_ranks, if `size` members are there, each survivor at its previous rank. Returns nullopt
// while the wait for more members goes on. With keep_ranks, a member is not awaited if a newcomer
// asks for its rank, since its launcher knows that it is lost. A pure function. `late`: the wait is
// over. Throws kTimeout if fewer members joined than required.
std::optional<std::vector<Arrival>> agree(std::vector<Arrival> arrived, const Awaited& awaited,
                                          bool late);
// The rank by the launcher of a member of the last attempt that is awaited and has not arrived; -1:
// none, or unknown.
int missing_rank(const std::vector<Arrival>& arrived, const Awaited& awaited);
// True if fewer than awaited.at_least have arrived and the process of a rank that is missing is
// coming. A pure function.
bool is_worth_waiting(const std::vector<Arrival>& arrived, const Awaited& awaited,
                      const std::set<int>& coming);
// The members of a group of newcomers only, in the order of their ranks by the launcher, if they
// replace all ranks of a job of `world` ranks but those that are gone: nobody else can come, since
// a launcher replaces a rank when its process has ended. A pure function.
std::optional<std::vector<Arrival>> newcomers_alone(std::vector<Arrival> arrived,
                                                    const std::set<int>& gone, int world);
// What remains to be awaited if the ranks `gone` will not come and not be replaced.
Awaited without(Awaited awaited, const std::set<int>& gone);

// The keys that this process has set in one attempt. Any thread may call any method.
class WrittenKeys {
 public:
  void add(const std::string& key);
  // Erases them from the store, if it can be reached.
  void erase_from(const c10::intrusive_ptr<c10d::Store>& store, std::uint32_t epoch);

 private:
  std::mutex mutex_;
  std::set<std::string> keys_;  // guarded by mutex_
};

// One attempt. Used by one thread.
class Rendezvous {
 public:
  // `written`: remembers the keys that this process sets, also those of meeting_place(). Null: they
  // stay.
  Rendezvous(const c10::intrusive_ptr<c10d::Store>& store, std::uint32_t epoch,
             const std::shared_ptr<WrittenKeys>& written = nullptr);

  // The store under which the attempt's members meet.
  c10::intrusive_ptr<c10d::Store> meeting_place() const;
  void arrive(const Arrival& mine);
  std::vector<Arrival> arrived() const;
  // True if a member of the former group has arrived, or the list is made: that group is given up.
  bool has_survivor() const;
  // Stores a list unless there is one already; returns the stored one.
  std::vector<Arrival> decide(const std::vector<Arrival>& members);
  std::optional<std::vector<Arrival>> decided() const;

  // Tells the other members that this rank is connected, or that `lost` cannot be reached.
  void ready(int rank);
  void report_lost(int rank);
  // A member that is known not to connect: it was reported, or has no chance because the attempt
  // has failed.
  std::optional<int> lost(int size) const;
  // True if all ranks of `size` are ready. False if one has given up, `lost` names one, or the wait
  // is over.
  bool all_ready(int size, std::chrono::milliseconds wait,
                 const std::function<std::optional<int>()>& lost) const;
  // Stores the result unless there is one already; returns the stored one. True: formed.
  bool settle(bool formed);

 private:
  bool has(const std::string& key) const;
  // Stores `text` at `key` if the key is empty; returns the stored text.
  std::string put_first(const std::string& key, const std::string& text);

  c10::intrusive_ptr<c10d::Store> store_;
};

}  // namespace weft::comm::internal
