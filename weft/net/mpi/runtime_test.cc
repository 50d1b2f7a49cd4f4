// Start of MPI, with a stub in place of a plug-in.
#include "weft/net/mpi/internal/runtime.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <optional>
#include <thread>

#include "weft/base/deadline.h"
#include "weft/base/error.h"

namespace weft::net::mpi::internal {
namespace {

using namespace std::chrono_literals;

std::atomic<bool> all_ranks_are_here = false;
std::atomic<bool> initialized = false;

// MPI_Init of a job whose other ranks come late.
int initialize(std::int32_t, std::int32_t* level, std::int32_t* was_initialized) {
  const auto limit = Deadline::in(5s);
  while (!all_ranks_are_here && !limit.passed()) std::this_thread::yield();
  *level = kMultiple;
  *was_initialized = 1;
  return 0;
}

int world(std::int32_t* rank, std::int32_t* size) {
  *rank = 0;
  *size = 2;
  return 0;
}

void version(char* text, std::int32_t) {
  *text = '\0';
  initialized = true;
}

const Table& stub() {
  static const Table table = [] {
    Table made{};
    made.abi = kAbi;
    made.name = "stub";
    made.initialize = initialize;
    made.world = world;
    made.version = version;
    return made;
  }();
  return table;
}

// Returns the code of the error of get(), if it throws.
std::optional<Errc> error_of_get() {
  try {
    Runtime::get(Deadline::in(1ms), &stub);
  } catch (const Error& error) {
    return error.code();
  }
  return std::nullopt;
}

TEST(MpiRuntime, ThrowsATimeoutIfMpiInitDoesNotEndInTimeAndRefusesLaterCalls) {
  EXPECT_EQ(error_of_get(), Errc::kTimeout);
  EXPECT_EQ(error_of_get(), Errc::kAborted);
  all_ranks_are_here = true;
  while (!initialized) std::this_thread::yield();
  EXPECT_EQ(error_of_get(), Errc::kAborted);
}

}  // namespace
}  // namespace weft::net::mpi::internal
