#include "weft/base/caught/caught.h"

#include <gtest/gtest.h>

#include <new>
#include <optional>
#include <stdexcept>

namespace weft {
namespace caught_test {

// A type that says more than its code.
class Special : public Error {
 public:
  using Error::Error;
};

TEST(AsError, KeepsAnErrorWithItsTypeAndItsContext) {
  const Special special(Errc::kTimeout, "too late", {"send", 1, 2});
  bool is_itself = false;
  take_as_error(special, [&](const Error& error) { is_itself = &error == &special; },
                {"recv", 3, 4});
  EXPECT_TRUE(is_itself);
  const Error copy = as_error(special, {"recv", 3, 4});
  EXPECT_STREQ(copy.what(), special.what());
  EXPECT_EQ(copy.context().peer, 2);
  EXPECT_STREQ(as_ended(special, "rank 1").what(), special.what());
}

TEST(AsError, GivesOtherExceptionsACodeAndAContext) {
  const Error memory = as_error(std::bad_alloc(), {"gather", 3});
  EXPECT_EQ(memory.code(), Errc::kUnavailable);
  EXPECT_EQ(memory.message(), describe(std::bad_alloc()));
  EXPECT_EQ(memory.context().operation, "gather");
  EXPECT_EQ(memory.context().rank, 3);
  const Error other = as_error(std::runtime_error("first\nsecond"));
  EXPECT_EQ(other.code(), Errc::kInternal);
  EXPECT_EQ(other.message(), "first second");
  const Error ended = as_ended(std::runtime_error("no file"), "rank 2");
  EXPECT_EQ(ended.code(), Errc::kAborted);
  EXPECT_EQ(ended.message(), "rank 2 ended with: no file");
}

TEST(AsEnded, KeepsTheMistakesOfOneRankFromTheOthers) {
  const Error ended = as_ended(Error(Errc::kInvalidArgument, "three targets"), "rank 2");
  EXPECT_EQ(ended.code(), Errc::kAborted);
  EXPECT_EQ(ended.message(), "rank 2 ended with: three targets");
}

TEST(RunAndTell, TellsOfExceptionsThatAreNoErrors) {
  std::optional<Error> told;
  const auto tell = [&](const Error& error) { told = error; };
  EXPECT_EQ(run_and_tell([] { return 7; }, tell), 7);
  EXPECT_THROW(run_and_tell([] { throw Special(Errc::kTimeout, "late"); }, tell), Special);
  EXPECT_FALSE(told);
  EXPECT_THROW(run_and_tell([] { throw std::bad_alloc(); }, tell, {"reduce", 1}), std::bad_alloc);
  ASSERT_TRUE(told);
  EXPECT_EQ(told->code(), Errc::kUnavailable);
  EXPECT_EQ(told->context().operation, "reduce");
}

}  // namespace caught_test
}  // namespace weft
