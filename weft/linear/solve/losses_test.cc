#include "weft/linear/solve/losses.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "weft/base/testing/refusal.h"

namespace weft::linear {
namespace losses_test {

const std::vector<Loss> kAll{Loss::kLogistic, Loss::kHinge, Loss::kSquaredHinge, Loss::kSquared};

template <class F>
void for_all(F&& f) {
  for (const Loss loss : kAll) {
    SCOPED_TRACE(to_string(loss));
    with_loss(loss, [&](auto kind) {
      for (const double y : {1.0, -1.0}) f(kind, y);
    });
  }
}

TEST(Losses, HaveNamesThatReadBack) {
  for (const Loss loss : kAll) EXPECT_EQ(parse_loss(to_string(loss)), loss);
  expect_refused([] { parse_loss("hing"); }, Errc::kInvalidArgument,
                 "there are logistic, hinge, squared-hinge and squared");
}

TEST(Losses, DerivativesAreThoseOfTheValues) {
  for_all([](auto kind, double y) {
    for (double z = -30; z < 30; z += 0.37) {
      const double h = 1e-5, slope = (kind.value(z + h, y) - kind.value(z - h, y)) / (2 * h);
      EXPECT_NEAR(kind.derivative(z, y), slope, 1e-4) << z;
    }
  });
}

TEST(Losses, FenchelYoungGapsAreZeroAtTheDerivativeAndPositiveElsewhere) {
  for_all([](auto kind, double y) {
    for (double z = -4; z < 4; z += 0.37) {
      const double exact = -kind.derivative(z, y);
      const auto gap = [&](double a) { return kind.value(z, y) + kind.conjugate(a, y) + a * z; };
      EXPECT_NEAR(gap(exact), 0, 1e-12) << z;
      for (const double b : {0.0, 0.125, 0.5, 1.0}) EXPECT_GE(gap(y * b), -1e-12) << z << " " << b;
    }
  });
}

TEST(Losses, StepsMaximizeTheRowsPartOfTheDual) {
  for_all([](auto kind, double y) {
    for (const double q : {1e-3, 0.3, 2.0, 50.0, 1e4}) {
      for (const double z : {-20.0, -1.5, 0.0, 0.7, 3.0, 30.0}) {
        for (const double b : {0.0, 0.01, 0.5, 0.99, 1.0}) {
          const double a = y * b, best = kind.step(z, a, y, q);
          const auto dual = [&](double at) {
            return -kind.conjugate(at, y) - z * (at - a) - q / 2 * (at - a) * (at - a);
          };
          // No value of a grid is better than 1 % of the step's gain.
          const double slack = 1e-10 + 0.01 * (dual(best) - dual(a));
          EXPECT_GE(slack, 1e-10) << "the step loses";
          for (double other = 0; other <= 1; other += 1.0 / 64)
            EXPECT_LE(dual(y * other), dual(best) + slack) << q << " " << z << " " << b;
        }
      }
    }
  });
}

TEST(Losses, StepsStayWithinTheirIntervals) {
  for (const double z : {-1e300, -1e6, -700.0, 700.0, 1e6, 1e300}) {
    for (const double q : {0.0, 1e-8, 1.0, 1e8}) {
      for (const double b : {0.0, 1e-300, 0.5, 1.0}) {
        const double hinge = Hinge::step(z, b, 1, q), logistic = Logistic::step(z, b, 1, q);
        EXPECT_TRUE(hinge >= 0 && hinge <= 1) << z << " " << q << " " << hinge;
        EXPECT_TRUE(logistic >= 0 && logistic <= 1) << z << " " << q << " " << logistic;
        EXPECT_GE(SquaredHinge::step(z, b, 1, q), 0);
      }
    }
  }
}

TEST(Losses, AnEmptyRowReachesItsOptimumInOneStep) {
  EXPECT_EQ(Hinge::step(0, 0, -1, 0), -1);
  EXPECT_EQ(SquaredHinge::step(0, 0, 1, 0), 2);
  EXPECT_EQ(Logistic::step(0, 0, 1, 0), 0.5);
  EXPECT_EQ(Squared::step(0, 0, 3, 0), 3);
}

TEST(Losses, CurvatureBoundsTheSecondDerivative) {
  for (const Loss loss : {Loss::kLogistic, Loss::kSquaredHinge, Loss::kSquared}) {
    with_loss(loss, [](auto kind) {
      double most = 0;
      for (double z = -6; z < 6; z += 0.01)
        most = std::max(most, (kind.derivative(z + 0.01, 1) - kind.derivative(z, 1)) / 0.01);
      EXPECT_LE(most, kind.kCurvature * (1 + 1e-9));
      EXPECT_GE(most, kind.kCurvature * 0.999);
    });
  }
}

TEST(Objectives, WithoutAValidRegularizerAreRefused) {
  expect_refused(
      [] {
        check(Objective{Loss::kSquared, 0, 0});
      },
      Errc::kInvalidArgument, "the solvers need a regularizer");
  expect_refused(
      [] {
        check(Objective{Loss::kSquared, NAN, 1});
      },
      Errc::kInvalidArgument, "l2 must be a finite number");
  expect_refused(
      [] {
        check(Objective{Loss::kSquared, 1, -1});
      },
      Errc::kInvalidArgument, "l1 is -1; it must be at least 0");
}

}  // namespace losses_test
}  // namespace weft::linear
