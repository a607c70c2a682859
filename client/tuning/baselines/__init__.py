"""What zeroth-order training is measured against: no training, and true gradients."""
