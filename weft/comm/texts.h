// Collectives of texts: names, reports, errors; and of answers. All ranks of the group call them;
// texts may differ in length.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "weft/comm/group.h"

namespace weft::comm {

// The root's text, on every rank. Other ranks' texts are not read.
std::string broadcast_text(const Group& group, const std::string& text, int root = 0);
// Every rank's text, by rank, on every rank. Each rank receives size() times the longest.
std::vector<std::string> all_gather_texts(const Group& group, const std::string& mine);
// The same on rank 0; the others get nothing.
std::vector<std::string> gather_texts(const Group& group, const std::string& mine);

// Words of the other ranks' error in together(), and its exchange of the reasons.
struct TogetherOptions {
  std::string operation = "";
  std::string failed = "failed";  // "rank 1 failed: …"
  // Null: all_gather_texts().
  std::function<std::vector<std::string>(const std::string& mine)> exchange = nullptr;
};

// Runs `work` on this rank, and throws on all ranks if it throws on one: there the same exception,
// elsewhere kAborted with the number of that rank and the reason. The group stays as it was.
// `work` may be different on each rank, and makes no calls of the group. Collective.
void together(const Group& group, const std::function<void()>& work,
              const TogetherOptions& options = {});

// True on all ranks if `here` is true on all of them. Costs a message of 4 bytes. Collective.
bool holds_on_all(const Group& group, bool here);

// The first entry in which two lists differ, of each list: "'fc1.weight Float[128, 784]'", or
// "nothing" if a list ends before it. Entries end with "; ". Not collective.
std::pair<std::string, std::string> first_difference(const std::string& mine,
                                                     const std::string& other);

}  // namespace weft::comm
