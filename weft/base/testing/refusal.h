// For the tests of any folder: what must be refused, and how. It needs GoogleTest and is not
// installed.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "weft/base/error.h"

namespace weft {

// What the Error that `call` throws says, which must have this code and be one line; "accepted"
// where it throws none.
inline std::string refusal(const std::function<void()>& call, Errc code = Errc::kInvalidArgument) {
  try {
    call();
  } catch (const Error& error) {
    const std::string what = error.what();
    EXPECT_EQ(error.code(), code) << what;
    EXPECT_EQ(what.find('\n'), std::string::npos) << what;
    return what;
  }
  return "accepted";
}

// `call` throws an Error of this code with `what` in its one line.
inline void expect_refused(const std::function<void()>& call, Errc code, const std::string& what) {
  EXPECT_THAT(refusal(call, code), testing::HasSubstr(what));
}

}  // namespace weft
