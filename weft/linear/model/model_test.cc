#include "weft/linear/model/model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <vector>

#include "weft/base/file.h"
#include "weft/base/testing/refusal.h"
#include "weft/linear/model/predict.h"

namespace weft::linear {
namespace model_test {

// Files that liblinear-train 2.3 wrote for three rows: "3 1:0.5 3:1", "1 2:1", "2 1:1".
constexpr const char* kThreeClasses = R"(solver_type L2R_LR
nr_class 3
label 3 1 2
nr_feature 3
bias 1
w
-0.15860871415072139 -0.49056843400444822 0.29667787796005585 
-0.34917380217574795 0.4416982197668618 -0.35376599616253646 
0.47023422231863987 -0.31675247606437273 -0.3818169836831336 
-0.27264099168341277 -0.2072458092292041 -0.24796611739358154 
)";
constexpr const char* kRegression =
    "solver_type L2R_L2LOSS_SVR\nnr_class 2\nnr_feature 3\nbias -1\nw\n0.66314375636101319 \n"
    "-0.60000846153672027 \n0.37897175560593271 \n";
constexpr const char* kCrammerSinger =
    "solver_type MCSVM_CS\nnr_class 2\nlabel 1 -1\nnr_feature 2\nbias -1\nw\n0.5 -0.5 \n-0.5 0.5 "
    "\n";

// In the form in which LIBLINEAR 2.40 and later write a model of -s 21.
constexpr const char* kOneClassSvm =
    "solver_type ONECLASS_SVM\nnr_class 2\nnr_feature 3\nbias -1\nrho 0.4\nw\n0.4\n0.8\n0\n";

class Models : public testing::Test {
 protected:
  Model read(const std::string& text) {
    std::ofstream(path_) << text;
    return read_model(path_);
  }
  void refused(const std::string& text, const std::string& what) {
    expect_refused([&] { read(text); }, Errc::kCorrupt, path_ + what);
  }
  static SparseRows three_rows(double bias) {
    SparseRows rows;
    for (const auto& row : {std::vector<Entry>{{0, 0.5F}, {2, 1}}, {{1, 1}}, {{0, 1}, {9, 7}}}) {
      auto with = row;
      if (bias >= 0) with.push_back({kBiasColumn, static_cast<float>(bias)});
      rows.add(0, with);
    }
    return rows;
  }

  TempDir folder_;
  std::string path_ = folder_ / "model";
};

TEST_F(Models, OfLiblinearPredictLikeLiblinear) {
  const Model model = read(kThreeClasses);
  EXPECT_EQ(model.outputs(), 3U);
  const auto made = predict(model, three_rows(1), true);
  EXPECT_EQ(made.labels, (std::vector<double>{3, 1, 2}));
  // Printed by liblinear-predict -b 1 for these rows; the third had no feature 10.
  const std::vector<double> expected{0.43119,  0.257828, 0.310981, 0.276911, 0.442548,
                                     0.280541, 0.318039, 0.268349, 0.413612};
  ASSERT_EQ(made.probabilities.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i)
    EXPECT_NEAR(made.probabilities[i], expected[i], 1e-6);
}

TEST_F(Models, WithABiasRefuseRowsWithoutIt) {
  const Model model = read(kThreeClasses);
  for (const double bias : {-1.0, 2.0}) {
    expect_refused([&] { predict(model, three_rows(bias)); }, Errc::kInvalidArgument,
                   "row 0 does not have the model's bias of 1; read the rows with LibsvmOptions");
  }
}

TEST_F(Models, WithoutABiasRefuseRowsWithIt) {
  const Model model = read(kRegression);
  expect_refused([&] { predict(model, three_rows(1)); }, Errc::kInvalidArgument,
                 "row 0 has a bias, and the model has none; read the rows without LibsvmOptions");
}

TEST_F(Models, OfARegressionPredictNumbers) {
  const Model model = read(kRegression);
  EXPECT_TRUE(model.labels.empty());
  const auto made = predict(model, three_rows(-1));
  EXPECT_NEAR(made.labels[0], 0.66314375636101319 / 2 + 0.37897175560593271, 1e-12);
  EXPECT_NEAR(made.labels[2], 0.66314375636101319, 1e-12);
  expect_refused([&] { predict(model, three_rows(-1), true); }, Errc::kInvalidArgument,
                 "a model of L2R_L2LOSS_SVR has no probabilities");
}

TEST_F(Models, OfCrammerAndSingerHaveAScoreForEachOfTwoClasses) {
  const Model model = read(kCrammerSinger);
  EXPECT_EQ(model.outputs(), 2U);
  EXPECT_EQ(predict(model, three_rows(-1)).labels, (std::vector<double>{1, -1, 1}));
}

TEST_F(Models, OfOneClassTellRowsThatAreLikeTheTrainingDataFromOthers) {
  const Model model = read(kOneClassSvm);
  EXPECT_EQ(model.outputs(), 1U);
  // Scores 0.2, 0.8 and 0.4, compared with rho = 0.4 as liblinear-predict does: above it is 1.
  EXPECT_EQ(predict(model, three_rows(-1)).labels, (std::vector<double>{-1, 1, -1}));
  expect_refused([&] { predict(model, three_rows(-1), true); }, Errc::kInvalidArgument,
                 "a model of ONECLASS_SVM has no probabilities");
  write_model(model, path_);
  EXPECT_EQ(read_file(path_, 1000), kOneClassSvm);
}

TEST_F(Models, AreWrittenAsTheyWereRead) {
  for (const std::string text : {kThreeClasses, kRegression, kCrammerSinger, kOneClassSvm}) {
    const Model model = read(text);
    write_model(model, path_);
    const Model again = read_model(path_);
    EXPECT_EQ(again.solver, model.solver);
    EXPECT_EQ(again.labels, model.labels);
    EXPECT_EQ(again.features, model.features);
    EXPECT_EQ(again.bias, model.bias);
    EXPECT_EQ(again.rho, model.rho);
    EXPECT_EQ(again.weights, model.weights);
  }
}

TEST_F(Models, WithSparseColumnsAreWrittenWithZerosBetween) {
  Model model{.solver = "L1R_LR", .labels = {1, -1}, .features = 4, .bias = 2};
  model.columns = ColumnMap::sparse({1, 3});
  model.columns.add_bias();
  model.weights = {0.5, -1.5, 3};
  write_model(model, path_);
  EXPECT_EQ(read_file(path_, 1000),
            "solver_type L1R_LR\nnr_class 2\nlabel 1 -1\nnr_feature 4\nbias 2\nw\n0\n0.5\n0\n-1.5\n"
            "3\n");
  SparseRows rows;
  rows.add(0, std::vector<Entry>{{1, 4}, {2, 100}, {kBiasColumn, 2}});
  rows.add(0, std::vector<Entry>{{3, 6}, {kBiasColumn, 2}});
  EXPECT_EQ(predict(model, rows).labels, (std::vector<double>{1, -1}));
  EXPECT_EQ(predict(read_model(path_), rows).labels, (std::vector<double>{1, -1}));
}

TEST_F(Models, ThatAreNotWellFormedAreRefusedWithTheLine) {
  refused("", ":1: the file ends early; this is no model file of LIBLINEAR");
  refused("1 1:0.5\n", ":1: unknown key \"1\"");
  refused("solver_type L2R_XX\n", ":1: unknown solver type \"L2R_XX\"");
  refused("solver_type L2R_LR\nnr_class 2\nnr_feature 1\nbias -1\nw\n1\n",
          ":5: there are no labels of the classes");
  refused("nr_class 2\nlabel 1 -1\nnr_feature 1\nw\n1\n", ":4: there is no solver_type");
  refused("solver_type L2R_LR\nnr_class 2\nlabel 1 -1\nw\n1\n", ":4: there is no nr_feature");
  refused("solver_type L2R_LR\nnr_class 2\nlabel 1 0.5\n",
          ":3: label \"0.5\" is not a whole number");
  refused("solver_type L2R_LR\nnr_class -2\n", ":2: \"-2\" is not a whole number of at most");
  refused("solver_type L2R_LR\nnr_class 2\nlabel 1 -1\nnr_feature 99999999999\n", ":4: ");
  const std::string head = "solver_type L2R_LR\nnr_class 2\nlabel 1 -1\nnr_feature 3\nbias -1\nw\n";
  refused(head + "1\n2\n", ":9: the file ends after 2 of 3 weights");
  refused(head + "1\n2\n3\n4\n", ":10: there is more after the 3 weights");
  refused(head + "1\nnan\n3\n", ":8: \"nan\" is not a finite number");
  refused(head + "1\n" + std::string(600, '1'), ":8: a word of more than 512 bytes");
  refused("solver_type L2R_LR\nnr_class 2\nbias 1e39\n", ":3: the bias does not fit into float32");
  expect_refused([&] { read_model(folder_ / "none"); }, Errc::kInvalidArgument, "cannot open");
}

TEST_F(Models, TakeNoMemoryForWeightsThatTheHeaderClaims) {
  refused("solver_type L2R_LR\nnr_class 1000000000\nlabel 1 2\n", ":4: the file ends early");
  refused("solver_type L2R_LR\nnr_class 3\nlabel 1 2 3\nnr_feature 4294967290\nbias 1\nw\n1 2 3\n",
          ":8: the file ends after 3 of 12884901873 weights");
}

TEST(Quality, CountsAndCorrelatesLikeLiblinearPredict) {
  const Predictions classes{.labels = {1, 1, -1, 1}, .probabilities = {}};
  const auto of_classes = compare(classes, std::vector<double>{1, -1, -1, 1});
  EXPECT_EQ(of_classes.correct, 3U);
  EXPECT_EQ(of_classes.accuracy(), 0.75);
  const Predictions numbers{.labels = {1, 2, 3}, .probabilities = {}};
  const auto of_numbers = compare(numbers, std::vector<double>{2, 4, 7});
  EXPECT_NEAR(of_numbers.mean_squared_error(), (1 + 4 + 16) / 3.0, 1e-12);
  // Correlation of (1, 2, 3) and (2, 4, 7): (5 / sqrt(2 * 38/3))².
  EXPECT_NEAR(of_numbers.squared_correlation(), 25.0 / (2 * 38.0 / 3), 1e-12);
  EXPECT_TRUE(std::isnan(
      compare({.labels = {1}, .probabilities = {}}, std::vector<double>{2}).squared_correlation()));
}

// Labels 2e7 + i % 3 and predictions 2e7 + 7 i % 5 of 1000 rows. Without 2e7, their sums are whole:
// Σy = 999, Σy² = 1665, Σp = 2000, Σp² = 6000 and Σpy = 1999.
TEST(Quality, CorrelatesLargeNumbersOfSmallDifferencesInParts) {
  Quality all;
  for (int part = 0; part < 4; ++part) {
    Predictions made;
    std::vector<double> labels;
    for (int i = part * 250; i < (part + 1) * 250; ++i) {
      made.labels.push_back(2e7 + 7 * i % 5);
      labels.push_back(2e7 + i % 3);
    }
    all.add(compare(made, labels));
  }
  EXPECT_EQ(all.rows, 1000U);
  EXPECT_EQ(all.mean_squared_error(), (6000 - 2 * 1999 + 1665) / 1000.0);
  const double shared = 1000 * 1999 - 2000 * 999;
  const double squares = (1000 * 6000 - 2000.0 * 2000) * (1000 * 1665 - 999 * 999);
  EXPECT_NEAR(all.squared_correlation(), shared * shared / squares, 1e-10);
}

TEST(Quality, HasNoCorrelationWithEqualPredictions) {
  const Predictions equal{.labels = std::vector<double>(10, 0.1), .probabilities = {}};
  Quality quality = compare(equal, std::vector<double>{1, 2, 3, 4, 5, 6, 7, 8, 9, 10});
  EXPECT_TRUE(std::isnan(quality.squared_correlation()));
  quality.add(compare(equal, std::vector<double>{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}));
  quality.add({});
  EXPECT_TRUE(std::isnan(quality.squared_correlation()));
  EXPECT_TRUE(std::isnan(Quality{}.squared_correlation()));
}

}  // namespace model_test
}  // namespace weft::linear
