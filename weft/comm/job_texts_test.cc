#include "weft/comm/internal/job_texts.h"

#include <gtest/gtest.h>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "weft/base/testing/refusal.h"

namespace weft::comm::internal {
namespace {

const Names kNames{"this process", "the running job"};

TEST(JobTexts, OfEqualProcessesHaveNoDifference) {
  const BackendOptions options{.secret = std::string(32, 's'), .alike = {{"model", "a; b; "}}};
  EXPECT_EQ(difference(job_texts(options), job_texts(options), kNames), "");
}

TEST(JobTexts, NameTheVersionsFirst) {
  JobTexts mine = job_texts({.alike = {{"model", "a; "}}}), theirs = job_texts({});
  theirs["weft"] = "0.0.1";
  const std::string why = difference(mine, theirs, kNames);
  EXPECT_EQ(why, "this process runs weft " + mine["weft"] +
                     " and the running job weft 0.0.1; start "
                     "all ranks with the same version");
  theirs = mine;
  theirs["libtorch"] = "1.0.0";
  EXPECT_NE(difference(mine, theirs, kNames).find("and the running job libtorch 1.0.0"),
            std::string::npos);
}

TEST(JobTexts, CompareSecretsAndDoNotContainThem) {
  const std::string secret = "0123456789abcdef0123456789abcdef";
  const JobTexts one = job_texts({.secret = secret}), none = job_texts({}),
                 other = job_texts({.secret = std::string(32, 'x')});
  for (const auto& [name, text] : one)
    EXPECT_EQ(text.find("0123456789"), std::string::npos) << name;
  EXPECT_NE(difference(one, other, kNames).find("have different secrets"), std::string::npos);
  EXPECT_NE(difference(one, none, kNames)
                .find("this process joined with the job's secret and the "
                      "running job without a secret"),
            std::string::npos);
}

TEST(JobTexts, ShowTheFirstEntryThatDiffers) {
  const auto of = [](const std::string& model) { return job_texts({.alike = {{"model", model}}}); };
  EXPECT_EQ(
      difference(of("w Float[3, 2]; b Float[3]; "), of("w Float[3, 2]; b Float[4]; "), kNames),
      "the model of this process has 'b Float[3]' and that of the running job 'b Float[4]'; "
      "start all ranks with the same program and configuration");
  EXPECT_NE(difference(of("w; "), of("w; b; "), kNames)
                .find("has nothing and that of the running job 'b'"),
            std::string::npos);
  EXPECT_NE(difference(job_texts({}), of("w; "), kNames).find("has nothing"), std::string::npos);
}

TEST(JobTexts, InTheStoreAreReadBackAndAnythingElseIsRefused) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const BackendOptions options{.alike = {{"recipe", "lr = 0.1; "}, {"model of two words", ""}}};
  const auto now = Deadline::in(std::chrono::milliseconds(0));
  expect_refused([&] { compare_with_job(*store, options, now); }, Errc::kTimeout,
                 "there is nothing to join");
  // Rank 0 does not wait for the others.
  compare_at_start(store, 0, 2, options);
  compare_with_job(*store, options, now);
  BackendOptions other = options;
  other.alike["recipe"] = "lr = 0.2; ";
  expect_refused(
      [&] { compare_with_job(*store, other, now); }, Errc::kBadConfig,
      "the recipe of this process has 'lr = 0.2' and that of the running job 'lr = 0.1'");
  expect_refused([&] { compare_at_start(store, 1, 2, other); }, Errc::kBadConfig,
                 "the recipe of rank 1 has 'lr = 0.2' and that of rank 0 'lr = 0.1'");
  for (const char* bad : {"weft", "weft 3", "weft 9\n0.1", "weft x\n0.1", " 1\n1"}) {
    const std::string text = bad;
    store->set("job/texts", std::vector<std::uint8_t>(text.begin(), text.end()));
    expect_refused([&] { compare_with_job(*store, options, now); }, Errc::kCorrupt, "unreadable");
  }
}

}  // namespace
}  // namespace weft::comm::internal
