// How the ranks of a group that has failed agree on who goes on, through the store. Each attempt
// has an epoch of its own:
//
//   arrive     each leaves its name; names stay the same through all epochs
//   agree      the first list of members that is put into the store is everybody's (compare and
//              set); who is not on it is left out
//   form       the members connect
//   settle     "formed" where all of them could, else "failed": again the first word put into the
//              store is everybody's, so that no member
//              goes on with a group that another one has given up
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "weft/comm/group.h"

namespace c10d {
class Store;
}

namespace weft::comm::internal {

struct Arrival {
  std::string name;  // one word
  int was = -1;      // its rank in the former group; -1: a newcomer
  bool operator==(const Arrival&) const = default;
};

// Whom an attempt waits for, and for how long.
struct Awaited {
  std::set<std::string> names;  // members of the last attempt that may still be alive
  int size = 0, at_least = 1;   // as RegroupOptions
};

// The members, in the order of their new ranks, or nullopt where more are waited for: survivors in
// their former order, then newcomers in the order of their names. A pure function. `late`: the wait
// is over. Throws kTimeout where fewer came than there must be.
std::optional<std::vector<Arrival>> agree(std::vector<Arrival> arrived, const Awaited& awaited,
                                          bool late);

// One attempt. Used by one thread.
class Rendezvous {
 public:
  Rendezvous(c10::intrusive_ptr<c10d::Store> store, std::uint32_t epoch);

  // The store under which the attempt's members meet.
  c10::intrusive_ptr<c10d::Store> meeting_place() const;
  void arrive(const Arrival& mine);
  std::vector<Arrival> arrived() const;
  // Puts a list into the store and gives the one that is there.
  std::vector<Arrival> decide(const std::vector<Arrival>& members);
  std::optional<std::vector<Arrival>> decided() const;

  // To the other members: I am connected; `lost` cannot be reached.
  void ready(int rank);
  void report_lost(int rank);
  // True where all ranks of `size` are ready, false when somebody has given up, or the wait is
  // over.
  bool all_ready(int size, std::chrono::milliseconds wait) const;
  // Puts a word into the store and gives the one that is there: true for formed.
  bool settle(bool formed);

 private:
  bool has(const std::string& key) const;
  std::string text_at(const std::string& key) const;
  // What is at `key` after putting `text` there where nothing was.
  std::string put_first(const std::string& key, const std::string& text);

  c10::intrusive_ptr<c10d::Store> store_;
};

}  // namespace weft::comm::internal
