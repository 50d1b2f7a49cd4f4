#include "weft/observe/position/published.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

namespace weft::observe::published_test {
namespace {

// Consistent exactly if all numbers are equal.
struct Value {
  std::uint64_t numbers[8];
  bool is_whole() const {
    for (const auto number : numbers)
      if (number != numbers[0]) return false;
    return true;
  }
};

Value value_of(std::uint64_t number) {
  Value value{};
  for (auto& one : value.numbers) one = number;
  return value;
}

TEST(Published, AReaderSeesWholeValuesInTheirOrderWhileAThreadWrites) {
  Published<Value> published{};
  std::atomic<bool> done = false;
  std::thread writer([&] {
    for (std::uint64_t number = 1; number <= 300'000; ++number) published.write(value_of(number));
    done = true;
  });
  std::uint64_t last = 0, torn = 0, backwards = 0;
  while (!done) {
    const Value seen = published.read();
    torn += !seen.is_whole();
    backwards += seen.numbers[0] < last;
    last = seen.numbers[0];
  }
  writer.join();
  EXPECT_EQ(torn, 0u);
  EXPECT_EQ(backwards, 0u);
  EXPECT_EQ(published.read().numbers[7], 300'000u);
  EXPECT_EQ(published.writes(), 300'000u);
}

// Wherever the writer was stopped or killed, also between two stores of a write.
TEST(Published, AValueIsWholeAfterItsWriterWasStoppedOrKilledAtAnyInstant) {
  using Shared = Published<Value>;
  void* const memory =
      ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  auto& published = *static_cast<Shared*>(memory);
  const pid_t writer = ::fork();
  if (writer == 0) {
    for (std::uint64_t number = 1;; ++number) published.write(value_of(number));
  }
  while (published.writes() == 0) std::this_thread::yield();
  for (int trial = 0; trial < 100; ++trial) {
    ::kill(writer, trial == 99 ? SIGKILL : SIGSTOP);
    int status = 0;
    ASSERT_EQ(::waitpid(writer, &status, WUNTRACED), writer);
    const Value seen = published.read();
    EXPECT_TRUE(seen.is_whole()) << "trial " << trial;
    EXPECT_EQ(seen.numbers[0], published.writes());
    if (trial < 99) ::kill(writer, SIGCONT);
  }
  ::munmap(memory, sizeof(Shared));
}

}  // namespace
}  // namespace weft::observe::published_test
