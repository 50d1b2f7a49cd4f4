// For tests: what must be refused, and how.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "weft/base/error.h"

namespace weft::data::text::internal {

// `call` throws an Error of this code whose text is one line and has `what` in it.
inline void expect_refused(const std::function<void()>& call, Errc code, const std::string& what) {
  try {
    call();
    ADD_FAILURE() << "not refused: " << what;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    EXPECT_THAT(error.what(), testing::HasSubstr(what));
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
  }
}

}  // namespace weft::data::text::internal
