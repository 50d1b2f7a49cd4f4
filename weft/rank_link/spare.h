// A warm spare: a process of the program that has loaded everything, and waits to become a rank.
//
//   launcher ── fork, WEFT_SPARE=1 ──► spare: loads libtorch, the model, the data
//                                        become_rank(): "ready" ──► launcher
//            a rank is lost ── "become RANK=2 …" ──► the spare sets this environment, and returns
//
// weft::init() calls become_rank(). Until then a spare has no rank: RANK and LOCAL_RANK are empty.
#pragma once

#include <string>
#include <vector>

#include "weft/rank_link/link.h"

namespace weft::rank_link {

// Environment variable that marks a spare which has no rank yet.
constexpr const char* kSpareVariable = "WEFT_SPARE";

// True in a spare that has no rank yet.
bool is_spare() noexcept;

// In a spare: tells the launcher that this process is ready, sleeps until it says which rank to
// become, and sets the rank's environment. Ends the process with exit code 0 if the launcher ends
// first. Elsewhere it returns at once. Call it while no other thread reads the environment.
void become_rank();
// The wait alone, over this link. Throws nothing.
void become_rank(Link& launcher);

// NAME=value of a rank as the value of "become", and back. An entry must not contain the byte 0x1e.
std::string to_text(const std::vector<std::string>& environment);
std::vector<std::string> environment_of(const std::string& text);

}  // namespace weft::rank_link
